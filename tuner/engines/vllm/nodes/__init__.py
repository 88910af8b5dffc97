"""One vLLM server over several nodes: its ranks, each a process of its own node."""
