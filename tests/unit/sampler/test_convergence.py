"""When a search has converged."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from tests.unit.sampler.test_residual import new_study, space, speed
from tuner.sampler.residual import ResidualSampler, converged

SMALL, LARGE = 0.004, 0.006


@pytest.mark.parametrize(
    ("improvements", "expected"),
    [
        ([None] * 10 + [SMALL] * 5, True),
        ([None] * 10 + [SMALL] * 4, False),  # fourteen trials
        ([None] * 11 + [SMALL] * 4, False),  # four in a row
        ([LARGE] * 10 + [SMALL] * 5, True),
        ([SMALL] * 10 + [LARGE] + [SMALL] * 4, False),
        ([LARGE] * 10 + [SMALL, SMALL, None, SMALL, None, SMALL, SMALL], True),  # two had another reason
        ([None] * 40, False),
        ([], False),
    ],
)
def test_a_search_has_converged_after_five_suggestions_with_a_small_improvement(
    improvements: list[Any], expected: bool
) -> None:
    assert converged(improvements, 0.005) is expected


def test_a_least_gain_of_zero_never_converges() -> None:
    assert not converged([0.0] * 40, 0.0)


def max_expected_improvements(objective: Any, trials: int) -> list[float | None]:
    sampler = ResidualSampler(space, seed=1)
    study = new_study(sampler)
    improvements = []
    for _ in range(trials):
        trial = study.ask()
        config = space(trial)
        assert sampler.last_suggestion is not None
        assert sampler.last_suggestion.params == config
        improvements.append(sampler.last_suggestion.max_expected_improvement)
        study.tell(trial, objective(config))
    return improvements


def test_the_maximum_expected_improvement_falls_only_where_no_improvement_is_left() -> None:
    """`speed` doubles with the batch up to 256, and one method has an optimal depth."""
    flat, steep = max_expected_improvements(lambda _: 1000.0, 40), max_expected_improvements(speed, 12)
    assert flat[:8] == [None] * 8  # space-filling trials
    assert converged(flat, 0.01)
    assert max(each for each in steep if each is not None) > 0.05


def test_without_a_feasible_trial_there_is_no_expected_improvement() -> None:
    sampler = ResidualSampler(space, seed=1, startup_trials=2)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for _ in range(6):
        trial = study.ask()
        trial.set_constraint("tpot", 1.0)
        study.tell(trial, speed(space(trial)))
        assert sampler.last_suggestion is not None
        assert sampler.last_suggestion.max_expected_improvement is None
