"""Frozen records of studies, trials and metrics, which every package may import: the standard library only, no SQL."""
