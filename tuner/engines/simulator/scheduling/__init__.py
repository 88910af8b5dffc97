"""The work of each engine step: vLLM V1's scheduler, its sequences, and speculative decoding."""
