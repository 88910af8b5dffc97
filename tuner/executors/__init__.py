"""Executors: run trials on workers, in threads of this process or on Ray."""
