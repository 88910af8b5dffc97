"""Spaces of several engines as one space, in which the engine is a parameter."""
