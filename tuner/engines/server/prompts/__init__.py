"""Make prompts of exact lengths. The modules import the standard library only: vLLM's interpreter runs them, too."""
