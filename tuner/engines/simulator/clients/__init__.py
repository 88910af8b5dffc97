"""The clients of a simulated server: when they send which requests, and the metrics of the answers."""
