"""Tests that read and run the notebooks of `docs/notebooks`."""
