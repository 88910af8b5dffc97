"""The figures of the load generator compared with those of `vllm bench serve`."""
