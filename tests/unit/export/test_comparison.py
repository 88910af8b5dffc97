"""What a verification compares: intervals by hand, the median of repeats, and the facts of a deployment."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from records.measured import measured
from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, TrialKind, TrialOutcome, TrialRecord
from tuner.export import references as recorded
from tuner.export.deployment import Argument, arguments_of
from tuner.export.references import INCONCLUSIVE, Reference, compared
from tuner.scoring.goals import parse_slo
from tuner.testing.exporter import deployment


def repeat(completed: int = 10, **metrics: float | None) -> Repeat:
    return Repeat(0, 0, 10, completed, 10 - completed, 1.0, metrics)


@pytest.mark.parametrize(
    ("values", "line", "failed"),
    [
        ((90.0, 110.0, 100.0), "output_throughput: measured 100, recorded 100 [90, 110]: within", False),
        ((80.0,), "output_throughput: measured 80, recorded 100 [90, 110]: WORSE", True),
        ((120.0,), "output_throughput: measured 120, recorded 100 [90, 110]: better", False),
        ((100.0, None), "output_throughput: measured -, recorded 100 [90, 110]: NOT MEASURED", True),
    ],
)
def test_the_median_of_the_repeats_is_compared(values: tuple[float | None, ...], line: str, failed: bool) -> None:
    found = compared(
        {"output_throughput": Reference(100.0, 90.0, 110.0)}, (), [repeat(output_throughput=each) for each in values]
    )
    assert (found.lines, found.failed) == ((line,), failed)


def test_less_latency_is_better() -> None:
    found = compared({"p99_ttft_ms": Reference(100.0, 90.0, 110.0)}, (), [repeat(p99_ttft_ms=80.0)])
    assert found.lines == ("p99_ttft_ms: measured 80, recorded 100 [90, 110]: better",)


def test_slos_but_that_on_quality_are_checked_over_all_requests() -> None:
    slos = [parse_slo(each) for each in ("success_rate>=0.95", "p99_tpot_ms<50", "quality>=0.99")]
    found = compared({}, slos, [repeat(10, p99_tpot_ms=40.0), repeat(8, p99_tpot_ms=42.0)])
    assert found.lines == (
        "SLO success_rate>=0.95: measured 0.9: MISSED",
        "SLO p99_tpot_ms<50: measured 41: holds",
    )
    assert found.failed


def test_a_value_within_an_interval_that_cannot_tell_is_inconclusive() -> None:
    """One round on a loaded machine: a server of a tenth of the throughput would be within, too."""
    noisy = {"output_throughput": Reference(1892.17, 181.293, 19748.7, tells=False)}
    found = compared(noisy, (), [repeat(output_throughput=2832.31)])
    line = "output_throughput: measured 2832.31, recorded 1892.17 [181.293, 19748.7]: inconclusive"
    assert found.lines == (line, INCONCLUSIVE)
    assert (found.failed, found.exit_code) == (False, 5)
    worse = compared(noisy, (), [repeat(output_throughput=100.0)])
    assert (worse.lines[0].rpartition(": ")[2], worse.exit_code) == ("WORSE", 1)


def test_benchmarks_that_vary_by_more_than_a_tenth_are_told() -> None:
    # Deviation 20, mean 100.
    repeats = [repeat(output_throughput=value) for value in (80.0, 100.0, 120.0)]
    found = compared({"output_throughput": Reference(100.0, 90.0, 110.0)}, (), repeats)
    assert found.lines[1:] == (
        "warning: output_throughput varies by 20% between the benchmarks; verify again on a quieter machine",
    )
    assert found.exit_code == 0


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


def test_words_are_grouped_as_argparse_does() -> None:
    words = ["a", "--x", "1", "two words", "--y=b=c", "-cc.mode=3", "-O3", "--n", "-5", "-", "- x", "--z="]
    assert arguments_of(words) == (
        Argument("", ("a",)),
        Argument("--x", ("1", "two words")),
        Argument("--y", ("b=c",)),
        Argument("-cc.mode", ("3",)),
        Argument("-O3"),
        Argument("--n", ("-5", "-", "- x")),
        Argument("--z", ("",)),
    )


def test_gpus_are_those_of_all_kinds_of_parallelism() -> None:
    assert deployment(argv=()).gpus == 1
    assert deployment(argv=("-tp", "4", "--data_parallel_size=2")).gpus == 8
    assert deployment(argv=("--tensor-parallel-size", "two")).gpus == 1
    assert deployment(argv=("-tp", "4"), device="cpu").gpus == 0


@pytest.mark.parametrize("device", ["NVIDIA L4", "2 × NVIDIA L4", "2 nodes of NVIDIA L4", "2 nodes of 4 × NVIDIA L4"])
def test_the_card_is_one_of_several(device: str) -> None:
    assert deployment(device=device).script.card == "NVIDIA L4"


def test_flags_exclude_model_and_name() -> None:
    made = deployment(model="/m", served_name="--odd", argv=("--max-num-seqs", "8"))
    assert made.words == ("/m", "--served-model-name", "--odd", "--max-num-seqs", "8")
    assert made.flag_words == ("--max-num-seqs", "8")
    assert made.model_folder == "/m"
    assert deployment(model="m").model_folder is None


def test_the_version_has_no_local_part() -> None:
    assert deployment(vllm_version="0.32.0+cpu").vllm_version == "0.32.0"
