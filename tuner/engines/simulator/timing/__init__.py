"""Durations: engine steps, the API servers' work, and the start of a server."""
