"""Minimise a toy function under a constraint with `ResidualSampler`: python docs/examples/residual_sampler.py

The method "b" has a lower optimum and a parameter of its own. The best x is 0.7, but the cost 2x may be at most 1.
Configurations with y above 0.9 fail.
"""

import optuna

from tuner.sampler.residual import ResidualSampler

COST_LIMIT = 1.0


def space(trial: optuna.Trial) -> dict[str, float]:
    """Suggest every parameter that applies."""
    config = {"x": trial.suggest_float("x", 0.0, 1.0), "y": trial.suggest_float("y", 0.0, 1.0), "gain": 0.0}
    if trial.suggest_categorical("method", ["a", "b"]) == "b":
        config["gain"] = 0.3 - 0.02 * (trial.suggest_int("depth", 1, 16) - 6) ** 2
    return config


def objective(trial: optuna.Trial) -> float:
    """Return the loss; set the constraint, or prune a configuration that fails."""
    config = space(trial)
    if config["y"] > 0.9:
        trial.set_constraint("failed", 1.0)
        raise optuna.TrialPruned
    trial.set_constraint("cost", 2.0 * config["x"] / COST_LIMIT - 1.0)  # at most 0 is satisfied
    return 1.0 + (config["x"] - 0.7) ** 2 + 0.1 * config["y"] - config["gain"]


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = ResidualSampler(space, seed=0)
    study = optuna.create_study(direction="minimize", sampler=sampler)
    study.optimize(objective, n_trials=30)
    best = sampler.recommend(study)
    assert best is not None
    print(f"trial {best.number}: loss {best.value:.3f} with {best.params}")
