"""When a search has settled."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from tests.unit.sampler.test_residual import space, speed, study_of
from tuner.sampler.convergence import converged
from tuner.sampler.residual import ResidualSampler

LITTLE, MUCH = 0.004, 0.006


@pytest.mark.parametrize(
    ("outlooks", "found"),
    [
        ([None] * 10 + [LITTLE] * 5, True),
        ([None] * 10 + [LITTLE] * 4, False),  # fourteen trials
        ([None] * 11 + [LITTLE] * 4, False),  # four in a row
        ([MUCH] * 10 + [LITTLE] * 5, True),
        ([LITTLE] * 10 + [MUCH] + [LITTLE] * 4, False),
        ([MUCH] * 10 + [LITTLE, LITTLE, None, LITTLE, None, LITTLE, LITTLE], True),  # two had another reason
        ([None] * 40, False),
        ([], False),
    ],
)
def test_a_search_has_settled_when_little_was_expected_five_times_in_a_row(outlooks: list[Any], found: bool) -> None:
    assert converged(outlooks, 0.005) is found


def test_zero_never_settles() -> None:
    assert not converged([0.0] * 40, 0.0)


def outlooks(objective: Any, trials: int) -> list[float | None]:
    sampler = ResidualSampler(space, seed=1)
    study = study_of(sampler)
    found = []
    for _ in range(trials):
        trial = study.ask()
        config = space(trial)
        found.append(sampler.outlook)
        study.tell(trial, objective(config))
    return found


def test_the_outlook_falls_where_nothing_is_to_be_found_and_not_where_there_is() -> None:
    """`speed` doubles with the batch up to 256, and one method has a depth to be found."""
    flat, steep = outlooks(lambda _: 1000.0, 40), outlooks(speed, 12)
    assert flat[:8] == [None] * 8  # these fill the space
    assert converged(flat, 0.01)
    assert max(outlook for outlook in steep if outlook is not None) > 0.05


def test_before_a_promise_was_kept_there_is_no_outlook() -> None:
    sampler = ResidualSampler(space, seed=1, startup=2)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for _ in range(6):
        trial = study.ask()
        trial.set_constraint("tpot", 1.0)
        study.tell(trial, speed(space(trial)))
        assert sampler.outlook is None
