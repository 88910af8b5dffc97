"""A Bayesian autotuner for LLM serving."""

__version__ = "0.1.0"
