"""Commands that run benchmarks, measured or simulated."""
