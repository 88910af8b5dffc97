"""The configuration of a simulated server: command line, environment, defaults and refusals of `vllm serve`."""
