"""Recorded traffic: readers of its formats, its description, and cuts."""
