"""The interval within which a verification must measure, against values worked out by hand."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from records.measured import measured
from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, TrialKind, TrialOutcome, TrialRecord
from tuner.export import references as recorded
from tuner.export.references import Reference

NOW = datetime(2026, 1, 1, tzinfo=UTC)
T_8 = 3.355387
"""The 0.995 quantile of Student's t with 8 degrees of freedom, from a printed table."""
T_4 = 4.604095


def record(number: int, round_: int, *values: float | None, failed: bool = False) -> TrialRecord:
    repeats = tuple(
        Repeat(i, i, 10, 10, 0, 1.0, {"output_throughput": value, "p99_ttft_ms": value})
        for i, value in enumerate(values)
    )
    failure = Failure(FailureKind.ENGINE_CRASH, Phase.BENCHMARK, "gone") if failed else None
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "cpu", {}, "", repeats=repeats, failure=failure)
    kind = TrialKind.CONFIRM if round_ else TrialKind.SEARCH
    return TrialRecord("study", number, round_, kind, None, {}, {}, 1, NOW, outcome)


def references(number: int, records: Sequence[TrialRecord], names: Sequence[str]) -> dict[str, Reference]:
    return recorded.references(number, records, names, measured(None, records, number))


def test_a_single_measurement_gets_the_smallest_interval() -> None:
    known = references(1, [record(1, 0, 1000.0)], ["output_throughput", "p99_ttft_ms"])
    assert (known["output_throughput"].low, known["output_throughput"].high) == pytest.approx((900.0, 1100.0))
    assert (known["p99_ttft_ms"].low, known["p99_ttft_ms"].high) == pytest.approx((700.0, 1300.0))


def test_noise_is_pooled_over_all_trials() -> None:
    # Logarithms of each trial: -0.1, 0, 0.1 about its own mean: squares 0.02 a trial, 2 degrees; four trials make
    # 0.08 / 8, so s = 0.1, whatever the trials' own levels are.
    low, high = math.exp(-0.1), math.exp(0.1)
    records = [record(n, 0, level * low, level, level * high) for n, level in enumerate((100.0, 2000.0, 50.0, 1.0))]
    known = references(1, records, ["output_throughput"])["output_throughput"]
    assert known.value == 2000.0
    assert known.low == pytest.approx(2000.0 * math.exp(-T_8 * 0.1), rel=1e-6)
    assert known.high == pytest.approx(2000.0 * math.exp(T_8 * 0.1), rel=1e-6)


def test_rounds_of_a_trial_are_one_group() -> None:
    # Two launches at exp(-0.2) and exp(0.2): mean 0, squares 0.08, 1 degree; the quantile of 4 degrees is taken. The
    # value is that of the round.
    records = [record(3, 0, math.exp(-0.2)), record(3, 1, math.exp(0.2))]
    known = references(3, records, ["output_throughput"])["output_throughput"]
    assert known.value == pytest.approx(math.exp(0.2))
    assert known.low == pytest.approx(math.exp(0.2 - T_4 * math.sqrt(0.08)), rel=1e-5)
    assert known.low > 0


def test_a_metric_without_measurement_has_no_reference() -> None:
    records = [record(1, 0, 5.0), record(2, 0, None), record(3, 0, 7.0, failed=True)]
    assert references(2, records, ["output_throughput"]) == {}
    assert references(3, records, ["output_throughput"]) == {}
    assert references(9, records, ["output_throughput"]) == {}


def test_the_interval_contains_all_measurements_of_the_trial() -> None:
    records = [record(1, 0, 1000.0, 1000.0, 1000.0, 1000.0, 500.0), *(record(n, 0, 1.0, 1.0) for n in range(2, 200))]
    known = references(1, records, ["output_throughput"])["output_throughput"]
    assert known.low <= 500.0


def test_a_value_of_zero_is_left_out_of_the_variance() -> None:
    known = references(1, [record(1, 0, 0.0, 0.0)], ["p99_ttft_ms"])["p99_ttft_ms"]
    assert (known.low, known.value, known.high) == (0.0, 0.0, 0.0)


def test_the_interval_of_values_far_apart_is_finite() -> None:
    known = references(1, [record(1, 0, 1e-300, 1e300)], ["p99_ttft_ms"])["p99_ttft_ms"]
    assert math.isfinite(known.low)
    assert math.isfinite(known.high)


def test_a_share_of_requests_has_its_sampling_error() -> None:
    repeats = (Repeat(0, 0, 100, 100, 0, 1.0, {"goodput_share": 0.98, "success_rate": 1.0}),)
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w", "cpu", {}, "", repeats=repeats)
    records = [TrialRecord("study", 1, 0, TrialKind.SEARCH, None, {}, {}, 1, NOW, outcome)]
    known = references(1, records, ["goodput_share", "success_rate"])
    # q = (98 + 2) / 104 = 0.96154, sqrt(2 * 0.96154 * 0.03846 / 100) = 0.027196, * 2.576 = 0.070057
    assert known["goodput_share"].low == pytest.approx(0.98 - 0.070057, abs=1e-5)
    assert known["goodput_share"].high == 1.0
    assert (known["success_rate"].low, known["success_rate"].high) == (1.0, 1.0)


@pytest.mark.parametrize(("noise", "tells"), [(0.05, True), (0.1, False)])
def test_an_interval_tells_nothing_if_a_quarter_less_is_within(noise: float, tells: bool) -> None:
    # As above, s is the noise, with 8 degrees: exp(-0.168) = 0.85 and exp(-0.336) = 0.71.
    records = [record(n, 0, *(1000.0 * math.exp(sign * noise) for sign in (-1, 0, 1))) for n in range(4)]
    assert references(1, records, ["output_throughput"])["output_throughput"].tells is tells
    # A latency may double.
    assert references(1, records, ["p99_ttft_ms"])["p99_ttft_ms"].tells
