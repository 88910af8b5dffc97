"""The description of a recording, and cuts that are near to it."""

import random

import pytest

from tuner.workloads.traces.cut import Comparison, Distances, cut
from tuner.workloads.traces.recording import RecordedRequest
from tuner.workloads.traces.summary import Lengths, Sessions, Timeline, summary_of


def sessions(count: int, turns: int, gap_s: float, seed: int = 5) -> Timeline:
    """Return `count` sessions of `turns` requests, of which each begins with all blocks of the one before."""
    source, rows = random.Random(seed), []
    for session in range(count):
        at = source.uniform(0, 1000)
        for turn in range(turns):
            blocks = (0, *(1 + session * turns + each for each in range(turn + 1)))
            request = RecordedRequest(0.0, 100 * len(blocks) - source.randrange(50), source.randrange(1, 90), blocks)
            rows.append((at + turn * gap_s, request))
    rows.sort(key=lambda each: each[0])
    return Timeline([each for _, each in rows], [at for at, _ in rows], 100)


def test_the_summary_of_four_requests() -> None:
    requests = [
        RecordedRequest(0, 1100, 10, (0, 1, 2), 0),
        RecordedRequest(0, 1500, 20, (0, 1, 3), 0),
        RecordedRequest(0, 512, 30, (0,), 1),
        RecordedRequest(0, 1100, 40, (0, 1, 2)),
    ]
    found = summary_of(Timeline(requests, [0.0, 1.0, 3.0, 4.0], 512))
    assert (found.requests, found.span_s, found.rate) == (4, 4.0, 0.75)
    assert found.rates == (2.5, 0, 2.5, 0, 0, 0, 0, 2.5, 0, 2.5)  # tenths of 0.4 s
    assert found.gap_cv == pytest.approx(0.3535534)  # gaps of 1, 2 and 1 s: sqrt(2/9) / (4/3)
    assert found.input == Lengths(1053, 1100, 1500, 1500)
    assert found.output == Lengths(25, 20, 40, 40)
    assert found.shared_tokens == 1024 + 512 + 1100
    assert found.hit_rate == pytest.approx(2636 / 4212)
    assert found.sessions == Sessions(2, 3, 1.5, 2)


def test_a_recording_without_times_and_blocks() -> None:
    found = summary_of(Timeline([RecordedRequest(0, 5, 6)], None, None))
    assert (found.span_s, found.rate, found.rates, found.gap_cv) == (None, None, (), None)
    assert (found.shared_tokens, found.hit_rate, found.sessions) == (None, None, None)


def test_requests_at_one_time_have_no_rate() -> None:
    found = summary_of(Timeline([RecordedRequest(0, 5, 6)] * 2, [3.0, 3.0], None))
    assert (found.rate, found.rates, found.gap_cv) == (None, (), None)


def test_the_whole_is_at_no_distance_from_itself() -> None:
    whole = sessions(40, 5, 30.0)
    found = Comparison(whole, None).distances(whole)
    assert found == Distances(0, 0, 0, 0, 0, 0, 0, 0)


def test_distances_are_worked_out() -> None:
    whole = Timeline([RecordedRequest(0, n, 10) for n in (10, 20, 30, 40)], [0.0, 1.0, 2.0, 4.0], None)
    part = Timeline([RecordedRequest(0, n, 15) for n in (10, 20)], [0.0, 2.0], None)
    found = Comparison(whole, None).distances(part)
    assert found.rate == pytest.approx(0.5 / 0.75 - 1)
    assert found.gaps == pytest.approx(2 / 3)  # gaps 1, 1 and 2 against 2
    assert found.bursts == 0.5  # 0, 1, 2 and 3 requests before each one against 0 and 1
    assert (found.input, found.output) == (0.5, 1.0)
    assert found.input_mean == pytest.approx(-0.4)
    assert found.output_mean == 0.5
    assert found.hit_rate is None


@pytest.fixture(scope="module")
def whole() -> Timeline:
    return sessions(200, 5, 100.0)


@pytest.fixture(scope="module")
def part(whole: Timeline) -> Timeline:
    """A cut of 100 requests for an endless cache."""
    return cut(whole, 100, 1, None).timeline


def test_a_cut_for_an_endless_cache_keeps_sessions_together(whole: Timeline, part: Timeline) -> None:
    found = Comparison(whole, None).distances(part)
    assert len(part.requests) == 100
    assert part.times_s is not None
    assert part.times_s[0] == 0
    assert max(abs(found.rate or 0), found.gaps or 0) < 0.15
    assert max(found.input, found.output) < 0.12
    assert abs(found.hit_rate or 1) < 0.05


def test_a_cut_for_a_small_cache_keeps_what_it_finds(whole: Timeline, part: Timeline) -> None:
    small = 2000
    endless, cached = whole.hit_rate(), whole.hit_rate(small)
    assert endless is not None
    assert cached is not None
    assert endless > cached + 0.2
    assert abs(Comparison(whole, small).distances(cut(whole, 100, 1, small).timeline).hit_rate or 1) < 0.05
    assert abs(Comparison(whole, small).distances(part).hit_rate or 0) > 0.05


@pytest.mark.parametrize(
    ("times", "end", "stretches"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.2, 5.4, 6.6], 1.1, (1.1, 1.1 / 1.2)),  # gaps of 1 or 1.2 s, 1.1 s on average
        ([0.0, 1.0, 10.0], 9 / 1.1, (1 / 1.1,)),  # 1 and 9 s: 1.1 s are further from the mean of 5 s
    ],
)
def test_a_cut_has_the_rate_of_the_whole_where_its_gaps_change_little(
    times: list[float], end: float, stretches: tuple[float, ...]
) -> None:
    whole = Timeline([RecordedRequest(0, 10, 10)] * len(times), times, None)
    found = cut(whole, 2, 1, None)
    assert found.timeline.times_s == [0.0, pytest.approx(end)]
    assert any(found.stretch == pytest.approx(each) for each in stretches)


def test_a_cut_is_the_same_for_the_same_seed() -> None:
    few = sessions(20, 4, 50.0)
    assert cut(few, 16, 3, None) == cut(few, 16, 3, None)


def test_requests_without_blocks_and_times_are_sampled_by_session() -> None:
    requests = [RecordedRequest(0, 10 + place, 5, (), place // 4) for place in range(400)]
    part = cut(Timeline(requests, None, None), 80, 1, None).timeline
    counts = [sum(each.session == number for each in part.requests) for number in range(100)]
    assert sorted(counts)[-20:] == [4] * 20
