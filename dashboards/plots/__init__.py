"""Plots of trials and studies, drawn with matplotlib."""
