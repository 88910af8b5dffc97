"""The surrogate model: Gaussian processes over encoded configurations and the history that they are fitted to."""
