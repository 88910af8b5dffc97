"""The ranking of a study's engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from records.trials import Provenance, StudyRecord, TrialKind
from tests.unit.cli.studies import GOALS, NOW, trial
from tuner.quality.examiner import changed_answers
from tuner.results.conclusion import engines_grid
from tuner.results.findings import Findings
from tuner.study.conclusion import defaults_of

DEFAULTS = {"engine": "vllm"}


def contender(number: int, ratio: float | None, disqualified: str | None = None) -> dict[str, Any]:
    score = None if ratio is None else {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
    metrics = {} if ratio is None else {name.metric: {"ratio": 2 * ratio} for name in GOALS.objectives}
    return {"number": number, "score": score, "disqualified": disqualified, "metrics": metrics}


def findings(*contenders: dict[str, Any], defaults: dict[str, Any] = DEFAULTS) -> Findings:
    engines = [{}, {"engine": "llama.cpp"}, {"engine": "vllm"}, {"engine": "llama.cpp"}]
    records = [replace(trial(number), config=config) for number, config in enumerate(engines)]
    conclusion = {"winner": 0, "reference": 0, "contenders": list(contenders)}
    return Findings(conclusion, records, GOALS, defaults)


def test_each_engine_has_its_best_configuration_the_best_first() -> None:
    found = engines_grid(findings(contender(1, 1.2), contender(2, 0.9), contender(3, 1.4)))
    assert found is not None
    assert [row[:4] for row in found.rows] == [
        ["llama.cpp", "#3", "1.400", "1.300 to 1.500"],
        ["vllm", "#0", "1.000", ""],
    ]
    assert {row[4] for row in found.rows} == {"×2.800", "×1.000"}


def test_an_excluded_configuration_ranks_no_engine() -> None:
    found = engines_grid(findings(contender(2, 1.1), contender(3, 1.4, "it misses p99_ttft_ms<500")))
    assert found is not None
    assert [row[:2] for row in found.rows] == [["vllm", "#2"], ["llama.cpp", "none"]]
    assert found.faint == {1}


def test_a_study_of_one_engine_has_no_ranking() -> None:
    assert engines_grid(findings(contender(1, 1.2), defaults={})) is None
    assert engines_grid(findings(contender(1, None))) is None


def test_a_winner_is_reduced_towards_the_defaults_of_its_engine() -> None:
    records = list(findings().records)
    reference = replace(records[0], kind=TrialKind.BASELINE)
    winner = replace(records[3], config={"engine": "llama.cpp", "llama.cpp.threads": 1})
    assert defaults_of([reference, *records[1:]], reference, winner) == 1
    assert defaults_of([reference, *records[1:]], reference, replace(winner, config={"x": 1})) == 0
    assert defaults_of([reference, *records[1:]], reference, None) == 0


def test_parameters_that_change_answers_are_those_of_the_trials_engine() -> None:
    spaces = {
        "vllm": {"parameters": {"cache": {"changes_answers": False}}},
        "llama.cpp": {"parameters": {"cache": {"changes_answers": True}, "threads": {}}},
    }
    engines = {name: {"space": space, "version": "1"} for name, space in spaces.items()}
    premise = {"engines": engines, "space": {"source": spaces["vllm"]}}
    study = StudyRecord("s", NOW, Provenance.MEASURED, premise, {})
    config: dict[str, Any] = {"engine": "llama.cpp", "llama.cpp.cache": "q8_0", "llama.cpp.threads": 2}
    assert changed_answers(study, replace(trial(1), config=config)) == ["llama.cpp.cache=q8_0"]
    assert changed_answers(study, replace(trial(1), config={"vllm.cache": "fp8"})) == []
