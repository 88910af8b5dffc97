"""The process that runs one submission's study, as `tuner optimize` does."""
