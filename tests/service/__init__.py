"""The real service: `tuner serve`, its drivers and their studies."""
