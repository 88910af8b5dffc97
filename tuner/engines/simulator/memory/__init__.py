"""What fits on the card: weights, activations, CUDA graphs and the paged KV cache."""
