"""Plotly figures of a study, for the report, notebooks and other pages."""
