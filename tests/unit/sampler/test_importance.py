"""The importance of parameters."""

from __future__ import annotations

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial

from tuner.sampler.flag_effects import LEAST_SCORED, parameter_importance

SPACE: dict[str, BaseDistribution] = {"strong": FloatDistribution(0.0, 1.0), "idle": FloatDistribution(0.0, 1.0)}


def trials(count: int) -> list[FrozenTrial]:
    """Return trials whose score depends on `strong` alone."""
    generator = np.random.default_rng(1)
    found = []
    for _ in range(count):
        params = {name: float(generator.uniform()) for name in SPACE}
        made = optuna.trial.create_trial(params=params, distributions=SPACE, value=0.0)
        made.set_user_attr("score", float(np.exp(params["strong"])))
        found.append(made)
    return found


def test_the_parameter_that_decides_the_score_explains_its_variance() -> None:
    found = parameter_importance(trials(60))
    assert list(found) == ["strong", "idle"]
    mean, low, high = found["strong"]
    assert low <= mean <= high
    assert mean > 0.9
    assert sum(share for share, _, _ in found.values()) == pytest.approx(1.0)


def test_few_trials_and_equal_scores_say_nothing() -> None:
    assert parameter_importance(trials(LEAST_SCORED - 1)) == {}
    same = trials(20)
    for each in same:
        each.set_user_attr("score", 1.0)
    assert parameter_importance(same) == {}


def test_trials_without_a_score_do_not_count() -> None:
    failed = optuna.trial.create_trial(
        state=optuna.trial.TrialState.FAIL, params={"c": "x"}, distributions={"c": CategoricalDistribution(["x", "y"])}
    )
    assert list(parameter_importance([*trials(30), failed])) == ["strong", "idle"]
