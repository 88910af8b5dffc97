"""Recorded traffic: readers of its formats, its description, and cuts (`docs/design/traces.md`)."""
