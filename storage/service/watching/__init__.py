"""Figures of the queue, for those who watch a service."""
