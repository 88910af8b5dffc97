"""The commands, one module each: those that run benchmarks, read results, and show what a study can use."""
