"""The optimizer: trials for clients that run them themselves. Only `model` imports Optuna, when it is first used."""
