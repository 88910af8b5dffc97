"""Numbers, durations and texts of the terminal."""

import pytest

from tuner.results import text


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
    assert text.metric("output_throughput", 3332.0) == "output_throughput 3,332 tok/s"
    assert text.metric("p99_tpot_ms", 13.914) == "p99_tpot_ms 13.91"
    assert text.metric("chat.p99_tpot_ms", 13.914) == "chat.p99_tpot_ms 13.91"
    assert text.metric("success_rate", 1.0) == "success_rate 1"
    assert text.metric("output_throughput", None) == "output_throughput –"


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
