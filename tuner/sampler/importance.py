"""How much each parameter matters in a search: functional ANOVA (Hutter, Hoos and Leyton-Brown, 2014) by Optuna."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import optuna
from optuna.trial import FrozenTrial

optuna.logging.set_verbosity(optuna.logging.ERROR)

RESAMPLES = 12
"""Bootstrap samples of the trials, from which the intervals follow."""

MOST_TRIALS = 300
"""Trials in a sample at most: a random forest of more takes seconds and says the same."""

LEAST_TRIALS = 10
"""With fewer trials nothing is said."""

TREES = 16


def parameter_importance(trials: Sequence[FrozenTrial], seed: int = 0) -> dict[str, tuple[float, float, float]]:
    """Return the share of the variance of the score's logarithm that each parameter explains.

    Parameters that only some trials have, and those with a single value, are left out. Shares are relative to all
    others, so that they add up to 1.

    Args:
        trials: with the user attribute `score`; others do not count.
        seed: of the samples and forests.

    Returns:
        By parameter, the most important first: the mean share over bootstrap samples of the trials, and the samples'
        5th and 95th percentile. Empty with fewer than `LEAST_TRIALS` trials, or if all score the same.
    """
    scored = [trial for trial in trials if (trial.user_attrs.get("score") or 0.0) > 0.0]
    if len(scored) < LEAST_TRIALS or len({trial.user_attrs["score"] for trial in scored}) == 1:
        return {}
    generator = np.random.default_rng(seed)
    found: dict[str, list[float]] = {}
    for index in range(RESAMPLES):
        chosen = generator.integers(len(scored), size=min(len(scored), MOST_TRIALS))
        for name, share in _shares([scored[place] for place in chosen], seed + index).items():
            found.setdefault(name, []).append(share)
    complete = {name: shares for name, shares in found.items() if len(shares) == RESAMPLES}
    summary = {
        name: (float(np.mean(shares)), float(np.quantile(shares, 0.05)), float(np.quantile(shares, 0.95)))
        for name, shares in complete.items()
    }
    return dict(sorted(summary.items(), key=lambda item: -item[1][0]))


def _shares(trials: Sequence[FrozenTrial], seed: int) -> dict[str, float]:
    values = [math.log(trial.user_attrs["score"]) for trial in trials]
    if len(set(values)) == 1:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study()
        study.add_trials(
            [
                optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=value)
                for trial, value in zip(trials, values, strict=True)
            ]
        )
        evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, seed=seed)
        return {
            name: float(share)
            for name, share in optuna.importance.get_param_importances(study, evaluator=evaluator).items()
        }


def stored_importance(storage_url: str, name: str) -> dict[str, tuple[float, float, float]]:
    """Return the importance of a stored study's parameters, see `parameter_importance`.

    Args:
        storage_url: of the database.
        name: of the study. Without one of this name in Optuna's tables, nothing is returned.
    """
    try:
        study = optuna.load_study(study_name=name, storage=storage_url)
    except KeyError:
        return {}
    return parameter_importance(study.get_trials(deepcopy=False))
