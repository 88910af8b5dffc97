"""Who sends requests to the simulated server, and the metrics of the answers."""
