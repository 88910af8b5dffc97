"""Studies in MLflow: the sync of finished trials, the layout of runs, and the UI."""
