"""Readers of the files that users write for a workload."""
