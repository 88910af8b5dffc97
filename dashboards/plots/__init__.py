"""Plotly figures of a study, for the report, MLflow, notebooks and other pages."""
