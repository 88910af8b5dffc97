"""How figures read."""

from datetime import UTC, datetime

import pytest

from storage.records import (
    Failure,
    FailureKind,
    Phase,
    Provenance,
    Repeat,
    TrialKind,
    TrialOutcome,
    TrialRecord,
    Verdict,
)
from tuner.cli.output import text
from tuner.scoring.objectives import parse_objective

NOW = datetime(2026, 1, 1, tzinfo=UTC)
THROUGHPUT = [parse_objective("output_throughput")]


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


def test_metric_has_its_unit() -> None:
    assert text.metric("output_throughput", 3332.0) == "output_throughput 3,332 tok/s"
    assert text.metric("success_rate", 1.0) == "success_rate 1"


def test_an_empty_configuration_is_called_what_it_is() -> None:
    assert text.config({}) == "vLLM's defaults"
    assert text.config({"a": None, "b": 2}) == "b=2"


def test_timings_leave_out_what_is_under_half_a_second() -> None:
    assert text.timings({"ready": 41.2, "own": 0.01, "stop": 0.6}) == "ready 41 s, stop 1 s"


def record(
    round_: int, *values: float, provenance: Provenance = Provenance.MEASURED, failed: bool = False
) -> TrialRecord:
    repeats = tuple(Repeat(i, i, 10, 10, 0, 1.0, {"output_throughput": value}) for i, value in enumerate(values))
    failure = Failure(FailureKind.ENGINE_CRASH, Phase.BENCHMARK, "gone") if failed else None
    outcome = TrialOutcome(NOW, NOW, provenance, "w", "cpu", {}, "", repeats=repeats, failure=failure)
    kind = TrialKind.CONFIRM if round_ else TrialKind.SEARCH
    verdict = Verdict({"output_throughput": values[0]}, {"success_rate>=1": 0.0}, 1.25)
    return TrialRecord("study", 7, round_, kind, None, {}, {"a": 1}, 1, NOW, outcome, verdict)


def test_a_result_is_that_of_the_rounds_and_not_what_the_search_picked_it_for() -> None:
    records = [record(0, 9000.0), record(1, 1000.0, 2000.0, 6000.0), record(2, 3000.0, 4000.0, 5000.0)]
    assert (
        text.result_line(7, records, THROUGHPUT)
        == "#7 measured in 2 rounds, medians: output_throughput 3,500 tok/s; a=1"
    )


def test_a_failed_round_has_no_figures() -> None:
    records = [record(0, 9000.0), record(1, 1000.0, 3000.0), record(2, 5.0, failed=True)]
    assert (
        text.result_line(7, records, THROUGHPUT)
        == "#7 measured in 1 round, medians: output_throughput 2,000 tok/s; a=1"
    )


def test_without_rounds_a_result_says_that_it_is_the_searchs() -> None:
    line = text.result_line(7, [record(0, 9000.0, provenance=Provenance.SIMULATED)], THROUGHPUT)
    assert line.startswith("simulated in the search: #7 ok: score 1.250, output_throughput 9,000 tok/s")


def test_a_trial_that_was_never_run_has_no_result() -> None:
    assert text.result_line(8, [record(0, 9000.0)], THROUGHPUT) == ""
