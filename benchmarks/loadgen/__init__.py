"""The load generator compared with other generators, and its figures with those of `vllm bench serve`."""
