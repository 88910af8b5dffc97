"""Levers: what would help a study that keeps its reference, although the study could not try it."""
