"""Optimizations: studies whose trials the clients run. Only `studies` and `proposals` import Optuna, at first use."""
