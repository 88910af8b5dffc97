"""The files of a run, and percentiles worked out by hand."""

from __future__ import annotations

import asyncio
import math
import time
from fractions import Fraction
from pathlib import Path

import pytest

from tuner.loadgen.result import (
    GeneratorDelays,
    generator_delays,
    read_delays,
    read_records,
    write_delays,
    write_records,
)
from tuner.loadgen.run import LoopWatch, PlanResult, percentile
from tuner.workloads.results import RequestRecord, RequestStatus

WHOLE = RequestRecord(
    index=7,
    name="chat é",
    status=RequestStatus.COMPLETED,
    planned_input=10,
    planned_output=3,
    due_s=0.1 + 0.2,
    sent_s=0.31,
    first_token_s=0.5,
    end_s=0.9,
    input_tokens=11,
    output_tokens=3,
    gaps_s=(0.1, 0.30000000000000004),
    error=None,
)
BARE = RequestRecord(8, "", RequestStatus.NOT_SENT, error="the run ended\x00 before \u2028 it")
ZEROS = RequestRecord(9, "a", RequestStatus.INCOMPLETE, 0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0, (0.0,), "")


def test_records_are_read_back_unchanged(tmp_path: Path) -> None:
    others = [RequestRecord(index, "a", status) for index, status in enumerate(RequestStatus)]
    records = [WHOLE, BARE, ZEROS, *others]
    write_records(tmp_path / "r.parquet", records)
    assert read_records(tmp_path / "r.parquet") == records


def test_absent_times_are_read_back_as_none(tmp_path: Path) -> None:
    write_records(tmp_path / "r.parquet", [BARE])
    (found,) = read_records(tmp_path / "r.parquet")
    assert (found.due_s, found.sent_s, found.first_token_s, found.end_s) == (None, None, None, None)
    assert (found.planned_input, found.output_tokens, found.gaps_s) == (None, None, ())
    assert found.status is RequestStatus.NOT_SENT


def test_no_records(tmp_path: Path) -> None:
    write_records(tmp_path / "r.parquet", [])
    assert read_records(tmp_path / "r.parquet") == []


@pytest.mark.parametrize(
    "delays",
    [
        GeneratorDelays(0.1, 0.2, 0.3, 0.0, 0.1 + 0.2, 1e-9, 4.5, 60.0),
        GeneratorDelays(None, None, None, None, None, None, 0, 0),
    ],
)
def test_delays_are_read_back_unchanged(tmp_path: Path, delays: GeneratorDelays) -> None:
    write_delays(tmp_path / "d.json", delays)
    assert read_delays(tmp_path / "d.json") == delays
    assert [path.name for path in tmp_path.iterdir()] == ["d.json"]


def test_own_delays_are_percentiles_of_each_kind() -> None:
    late = [float(value) for value in range(200, 0, -1)]
    found = generator_delays(PlanResult([], late, [5.0, 1.0, 3.0], 7.5, 60.0))
    assert found == GeneratorDelays(100.0, 198.0, 200.0, 3.0, 5.0, 5.0, 7.5, 60.0)
    assert generator_delays(PlanResult([])) == GeneratorDelays(None, None, None, None, None, None, 0.0, 0.0)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([4.0], 0.0, 4.0),
        ([4.0], 0.99, 4.0),
        # Half of four values is two of them, half of five is two and a half: the third has to be in.
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([5.0, 4.0, 1.0, 3.0, 2.0], 0.5, 3.0),
        ([5.0, 4.0, 1.0, 3.0, 2.0], 1.0, 5.0),
        ([5.0, 4.0, 1.0, 3.0, 2.0], 0.2, 1.0),
        ([5.0, 4.0, 1.0, 3.0, 2.0], 0.21, 2.0),
        ([2.0, 2.0, 2.0, 9.0], 0.75, 2.0),
        ([2.0, 2.0, 2.0, 9.0], 0.76, 9.0),
        # 99 % of 100 values is 99 of them, of 101 values 99.99: the hundredth has to be in.
        ([float(value) for value in range(1, 101)], 0.99, 99.0),
        ([float(value) for value in range(1, 102)], 0.99, 100.0),
    ],
)
def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed(
    values: list[float], share: float, expected: float | None
) -> None:
    assert percentile(values, share) == expected


@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(99, 100), Fraction(1)])
def test_the_shares_in_use_are_exact_for_any_number_of_values(share: Fraction) -> None:
    for count in range(1, 2000):
        assert percentile(range(1, count + 1), float(share)) == math.ceil(share * count), count


def test_a_busy_event_loop_has_a_measured_lag() -> None:
    async def busy() -> list[float]:
        watch = LoopWatch()
        watching = asyncio.create_task(watch.run())
        while not watch.lags_s:
            await asyncio.sleep(0)
        time.sleep(0.2)
        known = len(watch.lags_s)
        while len(watch.lags_s) == known:
            await asyncio.sleep(0)
        watching.cancel()
        return watch.lags_s

    lags = asyncio.run(busy())
    assert min(lags) >= 0.0
    assert lags[-1] > 0.19
