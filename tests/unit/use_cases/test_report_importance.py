"""The importance of parameters in a report: the stored one while it is of all trials, else computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.recorded import SEVEN_B, recorded_study
from tuner.use_cases.report.charts import plotted_facts
from tuner.use_cases.report.reported import ReportedStudy

SHARES = {"idle": [0.25, 0.125, 0.5], "strong": [0.75, 0.5, 0.875]}


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ReportedStudy:
    """A study whose importance, if computed, is that of a parameter `computed`."""
    monkeypatch.setattr("tuner.sampler.flag_effects.stored_importance", lambda url, name: {"computed": (1.0, 1.0, 1.0)})
    return replace(recorded_study("h200-7b.csv", SEVEN_B), url="sqlite:///unused.db")


def with_facts(study: ReportedStudy, **facts: Any) -> ReportedStudy:
    return replace(study, record=replace(study.record, facts={**study.record.facts, **facts}))


def test_the_stored_importance_is_shown_with_the_largest_first(study: ReportedStudy) -> None:
    found = with_facts(study, importance=SHARES, importance_trials=study.finished).importance
    assert list(found.items()) == [("strong", (0.75, 0.5, 0.875)), ("idle", (0.25, 0.125, 0.5))]


@pytest.mark.parametrize("facts", [{}, {"importance": SHARES}, {"importance": SHARES, "importance_trials": 1}])
def test_without_a_stored_one_of_all_trials_it_is_computed(study: ReportedStudy, facts: dict[str, Any]) -> None:
    assert list(with_facts(study, **facts).importance) == ["computed"]


def test_a_stored_absence_is_not_computed_again(study: ReportedStudy) -> None:
    assert with_facts(study, importance_trials=study.finished).importance == {}


def test_what_the_end_of_a_study_stores_is_read_again(study: ReportedStudy) -> None:
    stored = plotted_facts(study)
    assert stored["importance"] == {"computed": [1.0, 1.0, 1.0]}
    assert stored["importance_trials"] == sum(not trial.round for trial in study.trials if trial.outcome)
    assert with_facts(study, **stored).importance == {"computed": (1.0, 1.0, 1.0)}
