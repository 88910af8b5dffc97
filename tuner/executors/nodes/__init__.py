"""A worker that has several nodes of a Ray cluster."""
