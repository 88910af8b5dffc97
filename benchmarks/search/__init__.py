"""The comparison of samplers on problems whose best configurations are known."""
