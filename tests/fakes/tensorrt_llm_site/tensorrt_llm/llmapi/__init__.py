"""The options of the fake package."""
