"""What users send, and the presets that name a model, its load and its SLOs."""
