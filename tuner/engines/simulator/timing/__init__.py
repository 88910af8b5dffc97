"""How long steps, starts and the API servers take."""
