"""The contents of runs in MLflow, without an MLflow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards.mlflow.run_layout import flags_changed, run_name, trial_params, trial_points
from records.trials import JsonScalar, Provenance, TrialKind
from tests import store_samples as samples

FACTS = {"engine_defaults": {"block_size": 16, "prefix_caching": True, "rate": 1.0}}


def test_durations_of_a_simulated_trial_are_marked() -> None:
    trial = samples.pending(1)
    points = {
        each.name: each.value
        for each in trial_points(trial, replace(samples.success(), provenance=Provenance.SIMULATED), {})
    }
    assert points["simulated/launch_s"] == 1.5
    assert points["simulated/total_s"] == 62.875, "1.5 + 61.25 + 0.125"
    assert points["repeat/simulated_s"] == 30.5
    assert [name for name in points if name.startswith("timing/") or name == "repeat/duration_s"] == []


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({}, 0),
        ({"block_size": 16, "prefix_caching": True, "rate": 1, "dtype": None}, 0),
        ({"block_size": 32, "prefix_caching": True}, 1),
        ({"prefix_caching": 1}, 1),
        ({"dtype": "half", "block_size": None}, 1),
    ],
)
def test_a_flag_is_changed_where_its_value_is_not_the_default(config: dict[str, JsonScalar], count: int) -> None:
    assert flags_changed(replace(samples.pending(1), config=config), FACTS) == count


def test_a_parameter_that_a_search_trial_lacks_does_not_count_there_and_gets_no_default() -> None:
    facts = {**FACTS, "default_config": {"block_size": 16, "suffix_depth": 24}}
    searched = replace(samples.pending(1), config={"block_size": None})
    given = replace(searched, kind=TrialKind.ENQUEUED)
    outcome = replace(samples.success(), environment={})
    assert trial_params(searched, outcome, facts) == {"block_size": "16"}
    assert trial_params(given, outcome, facts) == {"block_size": "16", "suffix_depth": "24"}
    assert trial_params(searched, outcome, {}) == {"block_size": "default"}


def test_the_reference_is_named() -> None:
    reference = replace(samples.pending(0, kind=TrialKind.BASELINE), label="defaults")
    assert run_name(reference) == "#0 defaults"
    assert run_name(replace(reference, kind=TrialKind.CONFIRM, round=2, label="finals 0,1")) == "#0 r2"
