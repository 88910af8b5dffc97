"""Candidates, the acquisition function, and its maximisation by local search."""
