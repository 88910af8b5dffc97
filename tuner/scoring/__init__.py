"""Objectives, SLOs and the scalar score."""
