"""Plays one search: a sampler suggests, a problem answers, and trials run side by side on a virtual clock."""
