"""Optimizations over HTTP: trials for clients that run them themselves."""
