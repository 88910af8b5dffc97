"""The contents of runs in MLflow, and the note of a study."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from dashboards.mlflow.run_layout import (
    NOTE_TAG,
    flags_changed,
    note_of,
    run_name,
    study_tags,
    trial_params,
    trial_points,
)
from records.trials import JsonScalar, Provenance, StudyRecord, TrialKind
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


RATIO = {"ratio": 1.2, "low": 1.1, "high": 1.3, "rounds": 3}
CONCLUSION: dict[str, Any] = {
    "winner": 3,
    "keep_defaults": False,
    "reason": "trial 3 is better than the defaults beyond the noise",
    "contenders": [
        {"number": 3, "score": RATIO, "metrics": {"output_throughput": RATIO}, "disqualified": None},
        {"number": 4, "score": None, "metrics": {}, "disqualified": "missed p99_tpot_ms<50 in round 2 (60)"},
        {
            "number": 5,
            "score": {**RATIO, "low": None, "high": None},
            "metrics": {"output_throughput": RATIO},
            "disqualified": None,
        },
    ],
    "flag_effects": [
        {
            "name": "capture_sizes",
            "value": "a|b",
            "default": None,
            "ratio": 1.25,
            "low": 1.15,
            "high": 1.36,
            "metrics": {"output_throughput": 1.5},
            "needed": 0.02,
            "trials": 40,
        }
    ],
}


def study(**changes: Any) -> StudyRecord:
    made = StudyRecord("s", datetime(2026, 11, 22, tzinfo=UTC), Provenance.MEASURED, {}, {}, CONCLUSION)
    return replace(made, **changes)


def test_it_has_the_verdict_the_finalists_and_the_flag_effects() -> None:
    assert (note_of(study()) or "").replace("\N{NO-BREAK SPACE}", " ").splitlines() == [
        "**trial 3 is better than the defaults beyond the noise**",
        "",
        "Finalists relative to the defaults, as ratios [95 % confidence interval]; 1 means equal:",
        "",
        "|  | score | output_throughput | disqualified |",
        "| --- | --- | --- | --- |",
        "| #3 | 1.200 [1.100, 1.300] | 1.200 [1.100, 1.300] |  |",
        "| #4 | – | – | missed p99\\_tpot\\_ms\\<50 in round 2 (60) |",
        "| #5 | 1.200 | 1.200 [1.100, 1.300] |  |",
        "",
        "Flag effects of #3: each value with the flag relative to the value with the flag reset to its default, "
        "estimated from 40 trials [95 % confidence interval]. Failure risk: the probability that the server fails or "
        "misses an SLO with the flag reset to its default.",
        "",
        "| flag | default | score | output_throughput | failure risk |",
        "| --- | --- | --- | --- | --- |",
        "| `capture_sizes=a\\|b` | `unset` | 1.25 [1.15, 1.36] | 1.50 | 2 % |",
    ]


def test_a_simulated_study_is_marked_first() -> None:
    assert (note_of(study(provenance=Provenance.SIMULATED)) or "").startswith("Simulated, not measured")


def test_parts_that_a_conclusion_lacks_are_left_out() -> None:
    alone = {"winner": 0, "reason": "keep the defaults"}
    assert note_of(study(conclusion=alone)) == "**keep the defaults**"


def test_the_parent_run_has_a_description_once_there_is_a_conclusion() -> None:
    assert study_tags(study())[NOTE_TAG] == note_of(study())
    assert NOTE_TAG not in study_tags(study(conclusion=None))


def test_it_has_what_would_help_a_study_that_keeps_its_defaults() -> None:
    line = "FP8 weights (changes the answers): score ×1.20, output_throughput ×1.25"
    found = (note_of(study(conclusion={"reason": "keep the defaults", "would_help": [line]})) or "").splitlines()
    assert found[-1] == r"- FP8 weights (changes the answers): score ×1.20, output\_throughput ×1.25"
    assert "predicted" in found[2]
