"""Benchmarks of the samplers, the load generator, the simulator and the tuner's own cost; README.md lists them."""
