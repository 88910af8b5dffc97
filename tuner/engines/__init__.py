"""Engines: programs that serve a model, and the simulator that predicts them."""
