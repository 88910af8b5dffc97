"""What each engine step holds: vLLM V1's scheduler, its sequences and speculative decoding."""
