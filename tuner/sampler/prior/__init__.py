"""The prior: predictions of configurations, cached, and computed in the background."""
