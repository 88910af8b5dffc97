"""What those who watch a service get from it: metrics, logs as JSON, and webhooks."""
