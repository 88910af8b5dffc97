"""Views beside the command line: MLflow, plots, and tables computed from trials."""
