"""Run vLLM as a program: find it, check configurations, start its servers, benchmark them and explain failures."""
