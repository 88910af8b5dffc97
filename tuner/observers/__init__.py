"""Observers of a running study besides the terminal: MLflow's process, and those of programs, such as a fan-out."""
