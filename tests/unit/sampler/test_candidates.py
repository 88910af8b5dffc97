"""Where candidates come from: conditions respected, what a choice opens, and climbing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tuner.sampler.acquisition.candidates import CandidateSpace, opened_parameters
from tuner.sampler.acquisition.local_search import Changes, local_search
from tuner.sampler.surrogate.encoding import Encoder, Matrix, Vector


def define(trial: Any) -> None:
    if trial.suggest_categorical("method", ["plain", "draft"]) == "draft":
        trial.suggest_int("depth", 1, 16)
        trial.suggest_categorical("tree", [False, True])
    trial.suggest_int("batch", 8, 1024, log=True)


@pytest.fixture
def space() -> CandidateSpace:
    found = CandidateSpace(define)
    for seed in range(10):
        found.draw(np.random.default_rng(seed))
    return found


def test_a_choice_opens_the_parameters_that_are_only_beside_it() -> None:
    configs = [
        {"method": "plain", "batch": 8},
        {"method": "draft", "depth": 3, "tree": True, "batch": 8},
        {"method": "draft", "depth": 5, "tree": False, "batch": 64},
        {"method": "lookup", "size": 16, "batch": 64},
    ]
    found = opened_parameters(configs)
    assert found[("method", "draft")] == 2
    assert found[("method", "lookup")] >= 1
    assert found[("method", "plain")] == 0
    assert found[("batch", 8)] == 0


def test_where_nothing_is_conditional_nothing_is_opened() -> None:
    assert not opened_parameters([{"a": 1}, {"a": 2}])
    assert not opened_parameters([])


def test_a_change_is_encoded_as_the_changed_configuration(space: CandidateSpace) -> None:
    encoder = Encoder(space.distributions)
    config = {"method": "draft", "depth": 4, "tree": True, "batch": 64}
    changes = Changes(encoder, np.random.default_rng(0))
    rows, effects = changes.of(encoder.rows([config])[0], encoder.effects([config])[0])
    for place, (name, value) in enumerate(changes.changes):
        changed = {**config, name: value}
        assert rows[place] == pytest.approx(encoder.rows([changed])[0])
        assert effects[place] == pytest.approx(encoder.effects([changed])[0])


def test_climbing_changes_one_parameter_a_step_and_keeps_the_rules(space: CandidateSpace) -> None:
    encoder = Encoder(space.distributions)
    batch = encoder.names.index("batch")

    def merit(rows: Matrix, _: Matrix) -> Vector:
        values: Vector = rows[:, encoder.owner == batch][:, 0]  # the larger the batch, the better
        return values

    ruled = CandidateSpace(define, allowed=lambda config: config["batch"] <= 512)
    ruled.learn(space.distributions, [])
    start = {"method": "plain", "batch": 16}
    found = local_search(ruled, encoder, merit, [start], np.random.default_rng(0))
    assert found
    assert all(config["method"] == "plain" and config["batch"] <= 512 for config in found)
    assert found[-1]["batch"] > 100


def test_climbing_ends_where_nothing_is_better(space: CandidateSpace) -> None:
    encoder = Encoder(space.distributions)

    def merit(rows: Matrix, _: Matrix) -> Vector:
        return np.zeros(len(rows))

    assert local_search(space, encoder, merit, [{"method": "plain", "batch": 16}], np.random.default_rng(0)) == []
