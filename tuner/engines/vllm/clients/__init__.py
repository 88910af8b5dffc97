"""The programs that send a workload to vLLM: `vllm bench serve` and `tuner.loadgen`."""
