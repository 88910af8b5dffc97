"""The surrogate: Gaussian processes over encoded configurations."""
