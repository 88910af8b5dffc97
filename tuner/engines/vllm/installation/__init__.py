"""The installed vLLM: its executable, its flags, and the environment that it runs in."""
