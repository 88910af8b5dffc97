"""When a window of running servers deviates from a study, by values worked out by hand."""

import math

import pytest

from tuner.scoring.drift import DriftWatch, Histogram, Promise, Window, deviations, kolmogorov_smirnov

EDGES = (100.0, 200.0, 500.0, math.inf)


def lengths(*counts: float) -> Histogram:
    return Histogram(EDGES, counts)


def names(promise: Promise, window: Window, servers: int = 1) -> list[str]:
    return [each.name for each in deviations(promise, window, servers)]


def test_the_distance_of_lengths_is_the_largest_difference_of_cumulative_shares() -> None:
    # the histogram has 0.1, 0.4, 0.9, 1 up to its edges, the sample 0.25, 0.75, 1, 1
    assert kolmogorov_smirnov(lengths(10, 30, 50, 10), [50, 150, 200, 300]) == pytest.approx(0.35)


def test_a_value_at_an_edge_counts_below_it() -> None:
    assert kolmogorov_smirnov(lengths(1, 0, 0, 0), [100.0]) == 0


@pytest.mark.parametrize(("requests", "deviates"), [(1000, False), (1300, False), (1330, True)])
def test_a_rate_may_be_a_fifth_higher_and_as_much_more_as_chance_explains(requests: int, deviates: bool) -> None:
    # limit: 1.2 (1 + 3.29 / √n): 1.325 at 1,000 requests and 1.308 at 1,330, of 10 requests/s over 100 s
    assert names(Promise(10.0), Window(100.0, requests)) == (["rate"] if deviates else [])


def test_a_lower_rate_never_deviates() -> None:
    assert names(Promise(10.0), Window(100.0, 1)) == []


def test_the_rate_is_that_of_each_server() -> None:
    promise, window = Promise(10.0), Window(100.0, 3000)
    assert names(promise, window, servers=3) == []
    assert names(promise, window, servers=2) == ["rate"]


@pytest.mark.parametrize(("count", "deviates"), [(100, False), (10_000, True)])
def test_few_requests_explain_a_distance_that_many_do_not(count: int, deviates: bool) -> None:
    # distance 0.25; limit 0.2 + √(ln 2,000 / 2n): 0.395 for 100 requests, 0.219 for 10,000
    promise = Promise(None, {"prompt": [50.0, 150.0, 300.0, 600.0]})
    window = Window(60.0, count, {"prompt": lengths(0.25 * count, 0, 0.5 * count, 0.25 * count)})
    assert names(promise, window) == (["prompt"] if deviates else [])


@pytest.mark.parametrize(("sharing", "deviates"), [(0.5, False), (0.41, False), (0.2, True), (0.8, True)])
def test_sharing_deviates_in_both_directions(sharing: float, deviates: bool) -> None:
    # limit with 1,000 requests: 0.1 + 3.29 √(0.25 / 1000) = 0.152
    assert names(Promise(None, sharing=0.5), Window(60.0, 1000, sharing=sharing)) == (["sharing"] if deviates else [])


def test_a_promise_is_judged_by_the_first_edge_above_its_bound() -> None:
    seconds = (0.1, 0.25, 0.5, math.inf)
    promise = Promise(None, bounds={"TTFT": (0.2, 0.95)})
    held = Window(60.0, 1000, {"TTFT": Histogram(seconds, (0, 950, 50, 0))})  # up to 0.25 s: 95 %
    broken = Window(
        60.0, 1000, {"TTFT": Histogram(seconds, (0, 900, 100, 0))}
    )  # 0.02 + 3.29 √(0.95 × 0.05 / 1000) = 0.0427
    assert names(promise, held) == []
    assert names(promise, broken) == ["TTFT"]


def test_a_window_of_few_requests_says_nothing_of_lengths() -> None:
    assert names(Promise(None, {"prompt": [50.0]}), Window(60.0, 29, {"prompt": lengths(0, 0, 0, 29)})) == []


def test_what_a_server_does_not_count_is_not_judged() -> None:
    promise = Promise(None, {"prompt": [50.0]}, sharing=0.5, bounds={"TPOT": (0.05, 0.99)})
    assert names(promise, Window(60.0, 1000)) == []


def test_three_windows_in_a_row_are_a_drift_and_an_interrupted_row_is_none() -> None:
    watch = DriftWatch(Promise(10.0))
    calm, busy = Window(100.0, 1000), Window(100.0, 2000)
    assert [len(watch.add(each)) for each in (busy, busy, calm, busy, busy, busy)] == [0, 0, 0, 0, 0, 1]
