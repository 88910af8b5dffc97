"""Observers of a running study that are no part of the terminal: MLflow, and one that fans events out."""
