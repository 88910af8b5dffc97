"""Candidates: conditions of the space, conditional parameters of a choice, and local search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tuner.sampler.acquisition import SingleChanges, local_search
from tuner.sampler.candidates import CandidateSpace, count_conditional_parameters
from tuner.sampler.encoding import EncodedConfigurations, Encoder, Vector


def define(trial: Any) -> None:
    if trial.suggest_categorical("method", ["plain", "draft"]) == "draft":
        trial.suggest_int("depth", 1, 16)
        trial.suggest_categorical("tree", [False, True])
    trial.suggest_int("batch", 8, 1024, log=True)


@pytest.fixture
def space() -> CandidateSpace:
    drawn = CandidateSpace(define)
    for seed in range(10):
        drawn.draw(np.random.default_rng(seed))
    return drawn


def test_parameters_that_exist_only_beside_a_choice_are_counted_for_it() -> None:
    configs = [
        {"method": "plain", "batch": 8},
        {"method": "draft", "depth": 3, "tree": True, "batch": 8},
        {"method": "draft", "depth": 5, "tree": False, "batch": 64},
        {"method": "lookup", "size": 16, "batch": 64},
    ]
    counts = count_conditional_parameters(configs)
    assert counts[("method", "draft")] == 2
    assert counts[("method", "lookup")] >= 1
    assert counts[("method", "plain")] == 0
    assert counts[("batch", 8)] == 0


def test_a_space_without_conditions_has_no_conditional_parameters() -> None:
    assert not count_conditional_parameters([{"a": 1}, {"a": 2}])
    assert not count_conditional_parameters([])


def test_a_single_change_is_encoded_like_the_changed_configuration(space: CandidateSpace) -> None:
    encoder = Encoder(space.distributions)
    config = {"method": "draft", "depth": 4, "tree": True, "batch": 64}
    changes = SingleChanges(encoder, np.random.default_rng(0))
    before = encoder.encode([config])
    after = changes.apply(before.rows[0], before.effects[0])
    for index, (name, value) in enumerate(changes.changes):
        expected = encoder.encode([{**config, name: value}])
        assert after.rows[index] == pytest.approx(expected.rows[0])
        assert after.effects[index] == pytest.approx(expected.effects[0])


def test_local_search_changes_one_parameter_at_a_time_and_respects_rules(space: CandidateSpace) -> None:
    encoder = Encoder(space.distributions)
    batch = encoder.names.index("batch")

    def acquisition(inputs: EncodedConfigurations) -> Vector:
        """Return the position of the batch: the larger, the better."""
        return np.asarray(inputs.rows[:, encoder.columns.rows == batch][:, 0])

    ruled = CandidateSpace(define, lambda config: config["batch"] <= 512)
    ruled.update(space.distributions, [])
    start = {"method": "plain", "batch": 16}
    reached = local_search(ruled, encoder, acquisition, [start], np.random.default_rng(0))
    assert reached
    assert all(config["method"] == "plain" and config["batch"] <= 512 for config in reached)
    assert reached[-1]["batch"] > 100


def test_local_search_ends_where_no_change_is_better(space: CandidateSpace) -> None:
    start = {"method": "plain", "batch": 16}
    reached = local_search(
        space, Encoder(space.distributions), lambda inputs: np.zeros(len(inputs)), [start], np.random.default_rng(0)
    )
    assert reached == []
