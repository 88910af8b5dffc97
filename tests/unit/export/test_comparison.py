import pytest

from records.trials import Repeat
from tuner.export.references import INCONCLUSIVE, Reference, compared
from tuner.scoring.goals import parse_slo


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
