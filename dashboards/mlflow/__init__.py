"""Studies in MLflow: what is logged, how it is laid out, and the UI."""
