"""The ranking of a study's engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.cli.studies import GOALS, trial
from tuner.results.engines import engines_grid
from tuner.results.findings import Findings

DEFAULTS = {"engine": "vllm"}


def contender(number: int, ratio: float | None, disqualified: str | None = None) -> dict[str, Any]:
    score = None if ratio is None else {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
    metrics = {} if ratio is None else {name.metric: {"ratio": 2 * ratio} for name in GOALS.objectives}
    return {"number": number, "score": score, "disqualified": disqualified, "metrics": metrics}


def findings(*contenders: dict[str, Any], defaults: dict[str, Any] = DEFAULTS) -> Findings:
    engines = [{}, {"engine": "llama.cpp"}, {"engine": "vllm"}, {"engine": "llama.cpp"}]
    records = [replace(trial(number), config=config) for number, config in enumerate(engines)]
    conclusion = {"winner": 0, "reference": 0, "contenders": list(contenders)}
    return Findings(conclusion, records, GOALS.objectives, GOALS.slos, defaults)


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
