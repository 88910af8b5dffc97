"""The prior mean: predictions of configurations, cached, and computed in the background."""
