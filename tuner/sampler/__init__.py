"""The sampler: how the next configuration to measure is chosen. See `sampler.py`."""
