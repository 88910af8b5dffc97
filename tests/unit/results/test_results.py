"""The findings of a study, of its cost, and of each of its engines."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from records.trials import Provenance, StudyRecord, TrialKind, TrialRecord
from search_spaces import Price
from tests.recorded import MIX, recorded_study
from tests.some import some
from tests.unit.cli.studies import GOALS, NOW, study_start, trial
from tuner.cli.output.progress.lines import opening_lines
from tuner.quality.examiner import changed_answers
from tuner.results import text
from tuner.results.conclusion import classes_grid, classes_note, comparison_grid, cost_lines, engines_grid, price_lines
from tuner.results.findings import Findings
from tuner.study.conclusion import defaults_of
from tuner.study.specification.resolve_workload import make_goals

CLASS = {"input": 32, "output": 8}
WORKLOAD = {
    "arrivals": {"process": "poisson", "rate": 4},
    "requests": 100,
    "classes": {"chat": CLASS, "docs": CLASS, "unsent": {**CLASS, "weight": 0}},
    "slo": {"chat": {"p95_ttft_ms": 300, "tpot_ms": 20}},
}
SLOS = ["success_rate>=1", "chat.p95_ttft_ms<300", "docs.p95_itl_ms<40"]
CLASS_GOALS = make_goals(["goodput", "docs.p99_ttft_ms"], SLOS)
CONCLUSION: dict[str, Any] = {
    "winner": 1,
    "reference": 0,
    "contenders": [
        {
            "number": 1,
            "score": {"ratio": 1.2, "low": 1.1, "high": 1.3},
            "metrics": {"docs.p99_ttft_ms": {"ratio": 0.9, "low": 0.8, "high": 1.0}},
            "disqualified": None,
        }
    ],
}
E = math.exp(0.01)


def measured(number: int, round_: int, **chat: float) -> TrialRecord:
    """Return a trial in a round: metrics of class chat, and fixed ones of the others."""
    others = {"docs.p99_ttft_ms": 500.0, "docs.p95_itl_ms": 30.0, "docs.request_throughput": 2.0, "goodput": 4.0}
    values: dict[str, Any] = {f"chat.{name}": value for name, value in chat.items()} | others
    return trial(number, 100.0, round_=round_, label="finals 0,1" if round_ else None, success_rate=1.0, **values)


def findings(*records: TrialRecord, **changes: Any) -> Findings:
    return Findings({**CONCLUSION, **changes}, records, CLASS_GOALS, {}, None, WORKLOAD)


TWO_ROUNDS = (
    measured(0, 0, p95_ttft_ms=100.0),
    measured(1, 0, p95_ttft_ms=10.0),
    measured(0, 1, p95_ttft_ms=100.0, goodput=2.0, goodput_share=0.5),
    measured(1, 1, p95_ttft_ms=50.0 * E, goodput=3.0, goodput_share=0.75),
    measured(0, 2, p95_ttft_ms=200.0, goodput=2.0, goodput_share=0.5),
    measured(1, 2, p95_ttft_ms=100.0 / E, goodput=3.0, goodput_share=0.75),
)


def test_each_class_has_its_metrics_with_ratios_and_slos() -> None:
    """The interval of chat.p95_ttft_ms by hand.

    The logarithms' differences are log 0.5 ± 0.01. With two configurations in two rounds each residual is 0.02 / 4, so
    s² = 4 (0.005)² with one degree of freedom, and s = 0.01. The half-width is t(0.975, 1) s sqrt(2 / 2) = 0.12706;
    0.5 exp(±0.12706) is 0.440 to 0.568.
    """
    table = some(classes_grid(findings(*TWO_ROUNDS)))
    assert [column.heading for column in table.columns][:4] == ["class", "metric", "defaults #0", "#1"]
    assert table.rows == [
        ["chat", "goodput", "2 req/s", "3 req/s", "×1.500", "1.408 to 1.598", "", ""],
        ["", "goodput_share", "0.5", "0.75", "×1.500", "1.408 to 1.598", "", ""],
        ["", "p95_ttft_ms", "150", "74.75", "×0.500", "0.440 to 0.568", "<300", "both"],
        ["docs", "request_throughput", "2 req/s", "2 req/s", "×1.000", "", "", ""],
        ["", "p99_ttft_ms", "500", "500", "×0.900", "0.800 to 1.000", "", ""],
        ["", "p95_itl_ms", "30", "30", "×1.000", "", "<40", "both"],
    ]


def test_the_note_has_the_bounds_of_each_request() -> None:
    assert classes_note(findings(*TWO_ROUNDS)) == (
        "an SLO is met if it holds in every round; "
        "goodput counts the requests within the bounds of their class: chat ttft < 300 ms, tpot < 20 ms"
    )


@pytest.mark.parametrize(
    ("defaults", "other", "met"),
    [
        ((100.0, 200.0), (400.0, 500.0), "defaults #0"),
        ((100.0, 300.0), (299.0, 200.0), "defaults #0 in 1 of 2 rounds, #1"),
        ((301.0, 400.0), (300.0, 500.0), "neither"),
    ],
)
def test_an_slo_is_met_where_it_holds_in_every_round(
    defaults: tuple[float, ...], other: tuple[float, ...], met: str
) -> None:
    rounds = [
        measured(number, round_, p95_ttft_ms=value)
        for number, values in enumerate((defaults, other))
        for round_, value in enumerate(values, 1)
    ]
    table = some(classes_grid(findings(measured(0, 0), measured(1, 0), *rounds)))
    assert table.rows[0][0:2] == ["chat", "p95_ttft_ms"]
    assert table.rows[0][-1] == met


def test_without_rounds_it_is_the_search_without_intervals() -> None:
    table = some(classes_grid(findings(*TWO_ROUNDS[:2], contenders=[])))
    assert table.rows[0] == ["chat", "p95_ttft_ms", "100", "10", "×0.100", "", "<300", "both"]


def test_slos_of_classes_are_in_one_table_only() -> None:
    table = some(comparison_grid(findings(*TWO_ROUNDS)))
    assert [row[0] for row in table.rows] == ["score", "goodput", "docs.p99_ttft_ms", "success_rate"]


def test_a_recorded_mix_of_which_no_class_was_recorded_has_no_table() -> None:
    """The rows of `h200-mix-reduced.csv` have metrics of the whole workload."""
    assert classes_grid(recorded_study("h200-mix-reduced.csv", MIX).findings) is None


def test_a_closed_loop_has_no_table() -> None:
    loop = {"max_concurrency": 10, "num_prompts": 100, "input_len": 8, "output_len": 8}
    found = Findings(CONCLUSION, TWO_ROUNDS, CLASS_GOALS, {}, None, loop)
    assert classes_grid(found) is None
    assert classes_note(found) == ""


@pytest.mark.parametrize(
    ("value", "shown"), [(3332.4, "3,332"), (14.812, "14.81"), (0.97, "0.97"), (None, "–"), (0.0, "0"), (-1.5, "-1.5")]
)
def test_number(value: float | None, shown: str) -> None:
    assert text.number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.2, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (425, "7 min 05 s"), (7380, "2 h 03 min")]
)
def test_duration(seconds: float, shown: str) -> None:
    assert text.duration(seconds) == shown


def test_a_metric_has_its_unit_unless_its_name_has_it() -> None:
    assert text.metric("output_throughput", 3332.0, None) == "output_throughput 3,332 tok/s"
    assert text.metric("p99_tpot_ms", 13.914, None) == "p99_tpot_ms 13.91"
    assert text.metric("chat.p99_tpot_ms", 13.914, None) == "chat.p99_tpot_ms 13.91"
    assert text.metric("success_rate", 1.0, None) == "success_rate 1"
    assert text.metric("output_throughput", None, None) == "output_throughput –"
    assert text.metric("output_throughput", 3332.0, LISTED) == "output_throughput 3,332 tok/s"
    assert text.metric(COST, 0.04, LISTED) == f"{COST} 0.04 USD per Mtok"
    assert text.metric(COST, 0.04, Price(0.35)) == f"{COST} 0.04 per Mtok"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "less than 10 s"),
        (38, "about 40 s"),
        (55, "about 1 min"),
        (420, "about 7 min"),
        (3599, "about 1 h"),
        (7700, "about 2 h 10 min"),
    ],
)
def test_an_estimate_is_rounded(seconds: float, shown: str) -> None:
    assert text.about(seconds) == shown


def test_a_count_agrees_with_its_noun() -> None:
    assert (text.count(1, "trial"), text.count(1200, "trial")) == ("1 trial", "1,200 trials")


@pytest.mark.parametrize(
    ("width", "shown"), [(11, "one two six"), (10, "one two…"), (8, "one two…"), (7, "one…"), (2, "o…")]
)
def test_a_text_is_cut_between_words(width: int, shown: str) -> None:
    assert text.cut("one two six", width) == shown


def test_parts_are_joined_without_breaking_one() -> None:
    assert text.joined(["aaa", "bb", "cccccc"], 8) == ["aaa, bb", "cccccc"]


def test_timings_leave_out_what_is_under_half_a_second() -> None:
    assert text.timings({"ready": 41.2, "own": 0.01, "stop": 0.6}) == "ready 41 s, stop 1 s"


COST, ENERGY = "cost_per_million_output_tokens", "joules_per_output_token"
LISTED = Price(0.526, "USD", "a cloud, as of 2026-07")
COST_CONCLUSION: dict[str, Any] = {"winner": 1, "contenders": []}


def cost_findings(price: Price | None, metric: str = COST, objective: str = COST, **more: Any) -> Findings:
    first: dict[str, Any] = {metric: 0.04, **more}
    records = [trial(0, 1000.0, **first), trial(1, 2000.0, **{**first, metric: 0.02})]
    goals = make_goals([objective], [])
    return Findings(COST_CONCLUSION, records, goals, {}, price)


def test_costs_of_both_and_the_price() -> None:
    line = f"{COST}: 0.04 per Mtok with the defaults, 0.02 per Mtok with #1; price: 0.35 per GPU-hour (as given)"
    assert cost_lines(cost_findings(Price(0.35))) == [line]


def test_a_prediction_and_a_list_price_are_marked() -> None:
    (line,) = cost_lines(cost_findings(LISTED, provenance=Provenance.SIMULATED))
    assert line.startswith(f"predicted {COST}: ")
    assert line.endswith("price: 0.526 USD per GPU-hour (list price: a cloud, as of 2026-07)")


def test_energy_needs_no_price() -> None:
    found = cost_findings(None, ENERGY, "output_throughput")
    assert cost_lines(found) == [f"{ENERGY}: 0.04 J/tok with the defaults, 0.02 J/tok with #1"]


def test_the_cost_of_one_workload_has_its_price() -> None:
    assert cost_lines(cost_findings(LISTED, f"day.{COST}", f"day.{COST}")) == [f"price: {LISTED}"]


def test_a_study_without_costs_has_no_line() -> None:
    found = Findings(COST_CONCLUSION, [trial(0), trial(1)], GOALS, {}, LISTED)
    assert cost_lines(found) == []


def test_each_price_is_shown_once_and_only_beside_a_cost() -> None:
    assert price_lines([f"day.{COST}"], [LISTED, LISTED, None]) == [f"price: {LISTED}"]
    assert price_lines(["p99_ttft_ms", ENERGY], [LISTED]) == []


def test_a_study_of_the_cost_opens_with_its_price(tmp_path: Path) -> None:
    line = f"price: {LISTED}"
    assert line in opening_lines(study_start(tmp_path, goals=make_goals([COST], []), price=LISTED), 0)
    assert line not in opening_lines(study_start(tmp_path, price=LISTED), 0)


DEFAULTS = {"engine": "vllm"}


def contender(number: int, ratio: float | None, disqualified: str | None = None) -> dict[str, Any]:
    score = None if ratio is None else {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
    metrics = {} if ratio is None else {name.metric: {"ratio": 2 * ratio} for name in GOALS.objectives}
    return {"number": number, "score": score, "disqualified": disqualified, "metrics": metrics}


def engine_findings(*contenders: dict[str, Any], defaults: dict[str, Any] = DEFAULTS) -> Findings:
    engines = [{}, {"engine": "llama.cpp"}, {"engine": "vllm"}, {"engine": "llama.cpp"}]
    records = [replace(trial(number), config=config) for number, config in enumerate(engines)]
    conclusion = {"winner": 0, "reference": 0, "contenders": list(contenders)}
    return Findings(conclusion, records, GOALS, defaults)


def test_each_engine_has_its_best_configuration_the_best_first() -> None:
    found = some(engines_grid(engine_findings(contender(1, 1.2), contender(2, 0.9), contender(3, 1.4))))
    assert [row[:4] for row in found.rows] == [
        ["llama.cpp", "#3", "1.400", "1.300 to 1.500"],
        ["vllm", "#0", "1.000", ""],
    ]
    assert {row[4] for row in found.rows} == {"×2.800", "×1.000"}


def test_an_excluded_configuration_ranks_no_engine() -> None:
    found = some(engines_grid(engine_findings(contender(2, 1.1), contender(3, 1.4, "it misses p99_ttft_ms<500"))))
    assert [row[:2] for row in found.rows] == [["vllm", "#2"], ["llama.cpp", "none"]]
    assert found.faint == {1}


def test_a_study_of_one_engine_has_no_ranking() -> None:
    assert engines_grid(engine_findings(contender(1, 1.2), defaults={})) is None
    assert engines_grid(engine_findings(contender(1, None))) is None


def test_a_winner_is_reduced_towards_the_defaults_of_its_engine() -> None:
    records = list(engine_findings().records)
    reference = replace(records[0], kind=TrialKind.BASELINE)
    winner = replace(records[3], config={"engine": "llama.cpp", "llama.cpp.threads": 1})
    assert defaults_of([reference, *records[1:]], reference, winner) == 1
    assert defaults_of([reference, *records[1:]], reference, replace(winner, config={"x": 1})) == 0
    assert defaults_of([reference, *records[1:]], reference, None) == 0


def test_parameters_that_change_answers_are_those_of_the_trials_engine() -> None:
    declared = {"vllm.cache": {}, "llama.cpp.cache": {"changes_answers": True}, "llama.cpp.threads": {}}
    premise = {"engines": {"vllm": {}, "llama.cpp": {}}, "space": {"parameters": declared}}
    study = StudyRecord("s", NOW, Provenance.MEASURED, premise, {})
    config: dict[str, Any] = {"engine": "llama.cpp", "llama.cpp.cache": "q8_0", "llama.cpp.threads": 2}
    assert changed_answers(study, replace(trial(1), config=config)) == ["llama.cpp.cache=q8_0"]
    assert changed_answers(study, replace(trial(1), config={"vllm.cache": "fp8"})) == []
