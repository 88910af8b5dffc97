"""What owners have used, with numbers worked out by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from storage.service.records import Owner, Use
from tests.unit.service.queue.views import runs
from tuner.service.queue.rules import HALF_LIFE_S, WEEK_S
from tuner.service.queue.shares import (
    Interval,
    decayed,
    decayed_use,
    intervals_of_running,
    intervals_of_uses,
    owner_shares,
    week_use,
)

DAY_S = 86_400.0


def interval(began_s: float, ended_s: float, gpu_seconds: float, owner: str = "ann", kind: str = "h200") -> Interval:
    return Interval(owner, kind, began_s, ended_s, gpu_seconds)


def test_the_half_life_is_a_day_and_the_week_has_seven() -> None:
    assert (HALF_LIFE_S, WEEK_S) == (DAY_S, 7 * DAY_S)


def test_a_gpu_second_counts_half_after_a_day_and_a_quarter_after_two() -> None:
    assert decayed(8.0, 0.0) == 8.0
    assert decayed(8.0, DAY_S) == 4.0
    assert decayed(8.0, 2 * DAY_S) == 2.0


def test_a_whole_day_that_ends_now_counts_its_integral() -> None:
    # The integral of 2^(-t) from 0 to 1 day is (1 - 1/2) / ln 2 = 0.72135 days; two devices count twice.
    assert decayed_use(interval(0.0, DAY_S, 2 * DAY_S), DAY_S) == pytest.approx(2 * 0.7213475 * DAY_S, rel=1e-6)


def test_a_day_that_ended_a_day_ago_counts_half_of_that() -> None:
    assert decayed_use(interval(0.0, DAY_S, DAY_S), 2 * DAY_S) == pytest.approx(0.36067376 * DAY_S, rel=1e-6)


def test_a_short_interval_counts_whole() -> None:
    assert decayed_use(interval(-1e-3, 0.0, 1e-3), 0.0) == pytest.approx(1e-3, rel=1e-7)
    assert decayed_use(interval(5.0, 5.0, 12.0), 5.0 + DAY_S) == 6.0


def test_two_halves_of_an_interval_count_as_much_as_the_whole() -> None:
    whole = decayed_use(interval(0.0, 1000.0, 3000.0), 5000.0)
    halves = [decayed_use(interval(0.0, 400.0, 1200.0), 5000.0), decayed_use(interval(400.0, 1000.0, 1800.0), 5000.0)]
    assert sum(halves) == pytest.approx(whole, rel=1e-12)


def test_use_can_be_carried_from_one_time_to_the_next() -> None:
    then = decayed_use(interval(0.0, 1000.0, 3000.0), 1000.0)
    assert decayed(then, 4000.0) == pytest.approx(decayed_use(interval(0.0, 1000.0, 3000.0), 5000.0), rel=1e-12)


def test_an_interval_of_a_clock_that_is_ahead_has_not_decayed_more_than_its_length() -> None:
    assert decayed_use(interval(90.0, 110.0, 20.0), 100.0) == pytest.approx(20.0, rel=1e-3)


@pytest.mark.parametrize(
    ("began_days", "ended_days", "expected_days"),
    [(8, 9, 1.0), (2, 4, 1.0), (1, 3, 0.0), (0, 10, 7.0)],
    ids=["inside", "half inside", "outside", "longer than a week"],
)
def test_the_week_counts_what_lies_in_seven_days(began_days: int, ended_days: int, expected_days: float) -> None:
    length_s = (ended_days - began_days) * DAY_S
    assert week_use(interval(began_days * DAY_S, ended_days * DAY_S, length_s), 10 * DAY_S) == pytest.approx(
        expected_days * DAY_S
    )


def test_shares_are_summed_by_owner_and_kind() -> None:
    now = datetime(2026, 11, 25, 12, tzinfo=UTC)
    ended_at = now - timedelta(days=1)
    uses = [
        Use("ann", "ann-1", "h200", ended_at, ended_at, 3600.0),
        Use("ann", "ann-2", "t4", ended_at, ended_at, 1800.0),
        Use("ann", "ann-3", "cpu", ended_at, ended_at, 60.0),
        Use("bob", "bob-1", "t4", ended_at, ended_at, 100.0),
    ]
    owners = [Owner("ann", 2.0, 3, 40.0), Owner("eve")]
    intervals = intervals_of_uses(uses)
    shares = owner_shares(owners, intervals, now.timestamp())
    assert shares["ann"].use == {"h200": 1800.0, "t4": 900.0, "cpu": 30.0}
    assert (shares["ann"].week_s, shares["ann"].weight) == (5460.0, 2.0)
    assert (shares["ann"].most_gpus, shares["ann"].gpu_hours_a_week) == (3, 40.0)
    assert (shares["bob"].weight, shares["bob"].most_gpus, shares["bob"].use) == (1.0, None, {"t4": 50.0})
    assert (shares["eve"].use, shares["eve"].week_s) == ({}, 0.0)


def test_a_run_that_has_not_ended_counts_until_now() -> None:
    now_s = 1_000_000.0
    [running] = intervals_of_running([runs("ann-1", (0, 1), for_s=900.0)], now_s)
    assert running == Interval("ann", "h200", now_s - 900, now_s, 1800.0)
