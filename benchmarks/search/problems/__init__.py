"""The problems that samplers are compared on: recorded tables, simulated studies and formulas."""
