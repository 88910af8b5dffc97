"""How figures read."""

import pytest

from tuner.sinks import text


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
