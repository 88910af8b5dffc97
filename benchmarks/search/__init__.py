"""Comparison of samplers on problems with known answers."""
