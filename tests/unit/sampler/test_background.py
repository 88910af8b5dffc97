"""Predictions are asked for beside running trials, never while a choice is waited for."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from optuna.distributions import IntDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState

from tests.unit.sampler.test_residual import right, searched, space, speed, study_of
from tuner.sampler.acquisition.selection import AHEAD
from tuner.sampler.prior.prior_cache import Prediction, PriorCache
from tuner.sampler.residual import ResidualSampler
from tuner.sampler.surrogate.encoding import Encoder
from tuner.sampler.surrogate.history import Scale

MAXIMIZE = [StudyDirection.MAXIMIZE]
Key = frozenset[tuple[str, Any]]


def counted(asked: list[Key]) -> Any:
    """Predict rightly, and write down of what."""

    def prior(params: Any) -> Prediction:
        asked.append(frozenset(params.items()))
        return right(params)

    return prior


def test_a_choice_asks_for_nothing_and_wants_the_most_promising_before_the_next() -> None:
    asked: list[Key] = []
    sampler = ResidualSampler(space, prior=counted(asked), predicted=30, seed=1)
    study = study_of(sampler)
    sampler.prepare(MAXIMIZE)
    known = len(asked)
    assert known == 30
    for number in range(24):
        sampler.prepare(MAXIMIZE)
        prepared = len(asked)
        assert prepared - known <= AHEAD + 1
        known = prepared
        trial = study.ask()
        config = space(trial)
        assert len(asked) == prepared
        # every fifth choice switches something on that may not have been predicted
        assert frozenset(config.items()) in asked or number % 5 == 0
        study.tell(trial, speed(config))
    assert len(asked) == len(set(asked))
    assert len(asked) > 24 * AHEAD / 2


def test_the_forest_is_imported_beforehand_not_while_a_choice_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sklearn.ensemble", raising=False)
    sampler = ResidualSampler(space, prior=right, predicted=5, seed=1)
    study_of(sampler)
    sampler.prepare(MAXIMIZE)
    assert "sklearn.ensemble" in sys.modules


def test_prepared_or_not_the_trials_are_the_same() -> None:
    plain = searched(ResidualSampler(space, prior=right, predicted=30, seed=5), 14)
    sampler = ResidualSampler(space, prior=right, predicted=30, seed=5)
    study = study_of(sampler)
    for _ in range(14):
        sampler.prepare(MAXIMIZE)
        trial = study.ask()
        study.tell(trial, speed(space(trial)))
    assert [trial.params for trial in study.trials] == [trial.params for trial in plain.trials]


def test_what_breaks_a_rule_is_not_predicted() -> None:
    asked: list[Key] = []
    sampler = ResidualSampler(
        space, prior=counted(asked), predicted=30, allowed=lambda params: params["batch"] % 2 == 0, seed=3
    )
    assert {trial.state for trial in searched(sampler, 12).trials} == {TrialState.COMPLETE}
    assert len(asked) > 60
    assert all(dict(params)["batch"] % 2 == 0 for params in asked)


def test_a_belief_is_asked_once_for_what_is_wanted_twice() -> None:
    asked: list[Key] = []
    belief = PriorCache(counted(asked))
    belief.want([{"method": "plain", "batch": 8}, {"method": "plain", "batch": 16}, {"method": "plain", "batch": 8}])
    assert belief.asked == []
    belief.catch_up()
    assert belief.asked == [{"method": "plain", "batch": 8}, {"method": "plain", "batch": 16}]
    belief.catch_up()
    assert len(asked) == 2


def test_of_many_predictions_the_first_and_the_latest_are_considered() -> None:
    """1,300 of them: the first 200 and the latest 800, and all have rows of their own."""
    belief = PriorCache(lambda params: Prediction((float(params["batch"]),), {}))
    encoder = Encoder({"batch": IntDistribution(1, 1301)})
    scales = [Scale(1.0, 1.0, 1.0, False, 1.0)]
    for batch in range(1, 301):
        belief.of({"batch": batch})
    assert [each["batch"] for each in belief.considered] == list(range(1, 301))  # each of them once
    for batch in range(301, 1001):
        belief.of({"batch": batch})
    assert [each["batch"] for each in belief.considered] == list(range(1, 1001))
    assert len(belief.encoded(encoder)[0]) == 1000
    for batch in range(1001, 1301):
        belief.of({"batch": batch})
    expected = [*range(1, 201), *range(501, 1301)]
    assert [each["batch"] for each in belief.considered] == expected
    # gains are relative to 1; the place of 1 in 1 to 1301 is 0, that of 1301 would be 1
    assert belief.known_rows(scales, [])[:, 0].tolist() == [batch - 1 for batch in expected]
    rows, effects = belief.encoded(encoder)
    assert (1300 * rows[:, 0] + 1).round().tolist() == expected
    assert len(effects) == 1000
    assert len(belief.asked) == 1300
