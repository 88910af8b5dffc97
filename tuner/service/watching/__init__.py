"""Outputs of a service for those who watch it: metrics, logs as JSON, and webhooks."""
