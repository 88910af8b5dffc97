"""Decides what runs, starts drivers, and finds lost ones."""
