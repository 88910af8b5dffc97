"""The demand of each kind of arrivals, by hand, and the traffic of one server."""

from pathlib import Path
from typing import Any

import pytest

from tuner.errors import SettingError
from tuner.use_cases.size.demand import burstiness, demand_of, peaks
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import Gamma, Poisson, Traffic

HOUR = 3600.0


def traffic(arrivals: dict[str, Any], **more: Any) -> Traffic:
    classes = {"a": {"input": 30, "output": 10}, "b": {"input": 90, "output": 30}}
    return Traffic.model_validate({"arrivals": arrivals, "requests": 10, "classes": classes, **more})


def evenly(begin: float, end: float, rate: float) -> list[float]:
    """Return times at a rate."""
    return [begin + index / rate for index in range(round((end - begin) * rate))]


def test_a_constant_rate_is_peak_and_mean_without_hours() -> None:
    demand, one = demand_of(traffic({"process": "gamma", "rate": 7, "burstiness": 0.5}, max_in_flight=3))
    assert (demand.peak, demand.mean, demand.hours) == (7.0, 7.0, ())
    assert demand.input_tokens == pytest.approx(60.0, abs=3.0)  # two classes of equal weight
    assert demand.output_tokens == pytest.approx(20.0, abs=1.0)
    assert one.arrivals == Gamma(process="gamma", rate=7, burstiness=0.5)
    assert one.max_in_flight is None


def test_a_ramp_over_hours_has_the_higher_end_of_each() -> None:
    ramp = {"process": "ramp", "start_rate": 2, "end_rate": 8}
    demand, one = demand_of(traffic(ramp, duration_s=3 * HOUR, requests=None))
    assert (demand.peak, demand.mean) == (8.0, 5.0)
    assert demand.hours == pytest.approx((4.0, 6.0, 8.0))
    assert one.arrivals == Poisson(process="poisson", rate=8)
    short, _ = demand_of(traffic(ramp, duration_s=600, requests=None))
    assert (short.peak, short.hours) == (8.0, ())


def test_a_trace_has_the_rate_of_its_busiest_window_in_each_hour() -> None:
    times = [*evenly(0, HOUR, 1), *evenly(HOUR, HOUR + 600, 4), *evenly(HOUR + 600, 2 * HOUR + 1, 2)]
    peak, hours = peaks(times)
    assert peak == 4.0
    assert hours == (1.0, 4.0)


def test_days_are_laid_over_one_another() -> None:
    day = 24 * HOUR
    times = [*evenly(0, day, 0.1), *evenly(day, day + HOUR, 0.5), *evenly(day + HOUR, 2 * day + 1, 0.1)]
    peak, hours = peaks(times)
    assert peak == 0.5
    assert hours == pytest.approx((0.5, *[0.1] * 23))


def test_a_short_trace_has_its_mean_rate() -> None:
    peak, hours = peaks(evenly(0, 400, 2))
    assert peak == pytest.approx(2.0)
    assert hours == ()


def test_bursts_are_those_of_the_gaps() -> None:
    assert burstiness(evenly(0, 600, 1)) == 1.0  # more even than Poisson arrivals: splitting makes it so anyway
    pairs = [at for begin in range(0, 2000, 10) for at in (begin, begin + 1)]
    # gaps of 1 and 9: mean 5, variance 16, cv² 0.64
    assert burstiness([float(at) for at in pairs]) == 1.0
    bunches = [begin * 10 + 0.001 * index for begin in range(60) for index in range(10)]
    # in 300 s 270 gaps of 1 ms and 29 of 9.991 s: mean 0.970 s, variance 8.74 s², cv² 9.29
    assert burstiness(bunches) == pytest.approx(1 / 9.29, rel=0.01)


def test_a_trace_file_becomes_the_traffic_of_one_server(tmp_path: Path) -> None:
    file = tmp_path / "times.txt"
    file.write_text("".join(f"{at}\n" for at in evenly(0, 3 * HOUR, 0.5)))
    demand, one = demand_of(traffic({"process": "trace", "file": str(file), "speed": 2}, requests=None))
    assert demand.peak == pytest.approx(1.0)
    assert demand.span_s == pytest.approx(1.5 * HOUR, abs=1)
    assert demand.hours == ()
    assert one.rate == pytest.approx(1.0)


def test_what_has_no_rate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no request rate"):
        demand_of(ClosedLoop())
    with pytest.raises(SettingError, match="no request rate"):
        demand_of(traffic({"process": "closed", "users": 3}))
    (tmp_path / "one.txt").write_text("5\n5\n")
    with pytest.raises(SettingError, match="no two requests at different times"):
        demand_of(traffic({"process": "trace", "file": str(tmp_path / "one.txt")}, requests=None))


def test_sessions_count_with_each_request() -> None:
    classes = {"a": {"input": 30, "output": 10, "session": {"turns": 3}}}
    demand, one = demand_of(traffic({"process": "poisson", "rate": 2}, classes=classes))
    assert (demand.peak, demand.mean, one.rate) == (6.0, 6.0, 6.0)
    # prompts of 30, 70 and 110 tokens
    assert (demand.input_tokens, demand.output_tokens) == pytest.approx((70.0, 10.0))
    ramp, of_ramp = demand_of(
        traffic(
            {"process": "ramp", "start_rate": 2, "end_rate": 8}, duration_s=3 * HOUR, requests=None, classes=classes
        )
    )
    assert (ramp.peak, ramp.mean, of_ramp.rate) == (24.0, 15.0, 24.0)
    assert ramp.hours == pytest.approx((12.0, 18.0, 24.0))
