"""The samplers under comparison."""
