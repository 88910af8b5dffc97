"""What `vllm serve` was told: flags, precision, CUDA graphs, speculation, with vLLM's defaults and refusals."""
