"""Where a study is shown as it runs: the terminal and MLflow."""
