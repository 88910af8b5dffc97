"""The samplers that are compared."""
