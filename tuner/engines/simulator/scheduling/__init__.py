"""What each engine step computes: vLLM V1's scheduler, its sequences, and speculative decoding."""
