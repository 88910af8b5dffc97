"""Plots of a trial."""
