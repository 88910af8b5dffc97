"""Observers of a running study besides the terminal: MLflow, a fan-out, and two for the Python API."""
