"""GPU memory: weights, activations, CUDA graphs and the paged KV cache."""
