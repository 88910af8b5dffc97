"""The search for the highest rate at which SLOs hold, on servers whose capacity is known."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from records.trials import Repeat
from tuner.trial.capacity import RATIO, CapacitySearch, RatePoint, find_capacity, write_points


def point(rate: float, held: bool, ttft_ms: float | None = 10.0) -> RatePoint:
    repeat = Repeat(0, 0, 100, 99, 1, 10.0, {"p95_ttft_ms": ttft_ms, "goodput_share": 0.5})
    return RatePoint(rate, repeat, () if held else ("p95_ttft_ms<5", "success_rate>=1"))


def server(capacity: float) -> tuple[list[float], Callable[[float], RatePoint]]:
    tried: list[float] = []

    def measure(rate: float) -> RatePoint:
        tried.append(rate)
        return point(rate, rate <= capacity)

    return tried, measure


@pytest.mark.parametrize("capacity", [0.7, 4.0, 9.7, 33.0])
@pytest.mark.parametrize("first", [0.5, 8.0, 20.0])
def test_the_capacity_is_found_to_the_ratio_from_below(capacity: float, first: float) -> None:
    tried, measure = server(capacity)
    search = find_capacity(measure, first)
    assert search.best is not None
    if any(not tried.held for tried in search.points):
        assert capacity / RATIO <= search.best.rate <= capacity
    else:
        assert search.best.rate == max(tried) == first * 32
    assert len(tried) <= 10


def test_the_steps_are_doublings_then_halves_of_the_gap() -> None:
    # 4 and 8 hold, 16 does not; then 8 * sqrt(2) = 11.3 does not, 8 * 2 ** 0.25 = 9.5 does, 10.37 does not.
    tried, measure = server(10.0)
    search = find_capacity(measure, 4.0)
    assert tried == pytest.approx([4, 8, 16, 11.314, 9.514, 10.375], rel=1e-3)
    assert search.best is not None
    assert search.best.rate == pytest.approx(9.514, rel=1e-3)


def test_a_server_that_holds_no_rate_has_no_capacity() -> None:
    tried, measure = server(0.0)
    search = find_capacity(measure, 8.0)
    assert search.best is None
    assert tried == [8, 4, 2, 1, 0.5, 0.25]


def test_a_rate_that_held_above_one_that_missed_does_not_count() -> None:
    search = CapacitySearch((point(4, True), point(8, False), point(16, True)))
    assert search.best is not None
    assert search.best.rate == 4


def test_points_are_written_with_the_missed_slos(tmp_path: Path) -> None:
    write_points(tmp_path / "capacity.csv", [point(4, True), point(8, False, None)])
    rows = list(csv.DictReader((tmp_path / "capacity.csv").open()))
    assert [(row["rate"], row["held"], row["missed"]) for row in rows] == [
        ("4", "True", ""),
        ("8", "False", "p95_ttft_ms<5 success_rate>=1"),
    ]
    assert [row["p95_ttft_ms"] for row in rows] == ["10", ""]
