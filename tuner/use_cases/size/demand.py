"""The demand of a traffic file: its rate over time, and the traffic that one server of a fleet gets.

Rates are in requests/s, also where sessions of several requests arrive. The peak is the highest mean over windows of
`WINDOW_S`: shorter bursts are part of the arrivals, and no server starts within them. A file of at least two hours has
hours, counted from its first request. Several days are laid over one another, and the highest rate of an hour counts.

Requests are split evenly over the servers. One server's arrivals keep the variability of the whole file's gaps in its
busiest window. Splitting makes arrivals more even, so this is pessimistic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tuner.engines.simulator.client import workload_client
from tuner.errors import SettingError
from tuner.workloads.schedule import due_times
from tuner.workloads.spec import SingleWorkload
from tuner.workloads.traffic import Closed, Constant, Gamma, Poisson, Ramp, Traffic

HOUR_S = 3600.0
HOURS_OF_DAY = 24
WINDOW_S = 300.0
"""A peak lasts at least this long; a server takes minutes to start."""

LEAST_GAPS = 100
"""Gaps from which their variability follows."""
LEAST_BURSTINESS = 0.05
_DRAWN = 2000
"""Requests whose mean lengths count."""


@dataclass(frozen=True)
class Demand:
    """What the whole fleet has to serve.

    Attributes:
        peak, mean: rates over the file's time.
        hours: the peak within each hour; empty where the file has one rate, or less than two hours.
        span_s: the time that the file covers; None for a rate without an end.
        input_tokens, output_tokens: means of a request.
    """

    peak: float
    mean: float
    hours: tuple[float, ...]
    span_s: float | None
    input_tokens: float
    output_tokens: float


def demand_of(load: SingleWorkload) -> tuple[Demand, Traffic]:
    """Return the demand of traffic, and the traffic of one server, whose rate is to be set.

    Raises:
        SettingError: for a closed loop, and for a file without two requests.
    """
    if not isinstance(load, Traffic) or isinstance(load.arrivals, Closed):
        rule = "a closed loop has users and no request rate"
        raise SettingError("workload", None, rule, "give traffic with arrivals of another process by {workload} FILE")
    arrivals, span = load.arrivals, load.duration_s
    hours: tuple[float, ...] = ()
    if isinstance(arrivals, Poisson | Gamma | Constant):
        peak = mean = arrivals.rate
        single: Poisson | Gamma | Constant = arrivals
    elif isinstance(arrivals, Ramp):
        assert span is not None  # `Traffic` refuses a ramp without a duration
        peak, mean = max(arrivals.start_rate, arrivals.end_rate), (arrivals.start_rate + arrivals.end_rate) / 2
        hours, single = _hours_of_ramp(arrivals, span), Poisson(process="poisson", rate=peak)
    else:
        times = _times(load)
        span = times[-1] - times[0]
        mean, (peak, hours) = (len(times) - 1) / span, peaks(times)
        single = Gamma(process="gamma", rate=peak, burstiness=burstiness(times))
    changes = {"arrivals": single, "requests": _DRAWN, "duration_s": None, "max_in_flight": None}
    one = load.model_copy(update=changes)
    prompts = [request.prompt for request in workload_client(one, one.seed, False, 0.0).requests]
    lengths = [float(np.mean([each.tokens for each in prompts])), float(np.mean([each.output for each in prompts]))]
    count = load.requests_per_arrival
    return Demand(count * peak, count * mean, tuple(count * rate for rate in hours), span, *lengths), one


def _times(load: Traffic) -> list[float]:
    times = [at for at in due_times(load) if at is not None]
    if len(times) < 2 or times[-1] <= times[0]:
        raise SettingError("workload", None, "the trace has no two requests at different times, and so no rate")
    return times


def _hours_of_ramp(ramp: Ramp, span_s: float) -> tuple[float, ...]:
    """Return the higher rate of both ends of each whole hour."""
    slope, hours = (ramp.end_rate - ramp.start_rate) / span_s, int(span_s // HOUR_S)
    ends = [ramp.start_rate + slope * HOUR_S * hour for hour in range(hours + 1)]
    return _folded([max(pair) for pair in pairwise(ends)])


def peaks(times: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    """Return the highest rate of a window, and of the windows within each hour; see the module's docstring."""
    span = times[-1] - times[0]
    windows = int(span // WINDOW_S)
    if windows < 2:
        return (len(times) - 1) / span, ()
    places = ((np.asarray(times) - times[0]) // WINDOW_S).astype(int)
    rates = np.bincount(places, minlength=windows)[:windows] / WINDOW_S
    in_hour = int(HOUR_S // WINDOW_S)
    whole = windows // in_hour
    hours = [float(rates[hour * in_hour : (hour + 1) * in_hour].max()) for hour in range(whole)]
    return float(rates.max()), _folded(hours)


def _folded(hours: Sequence[float]) -> tuple[float, ...]:
    """Return the hours of a day, each with the highest rate of its days; nothing for less than two hours."""
    return tuple(max(hours[hour::HOURS_OF_DAY]) for hour in range(min(len(hours), HOURS_OF_DAY))) * (len(hours) > 1)


def burstiness(times: Sequence[float]) -> float:
    """Return the shape of gamma-distributed gaps, 1 / cv², of the busiest window; at most 1, a Poisson process."""
    found = np.asarray(times) - times[0]
    busiest = int(np.bincount((found // WINDOW_S).astype(int)).argmax())
    inside = found[(found // WINDOW_S).astype(int) == busiest]
    gaps = np.diff(inside if len(inside) > LEAST_GAPS else found)
    spread = float(np.var(gaps) / np.mean(gaps) ** 2)
    return 1.0 if len(gaps) < LEAST_GAPS or spread <= 1.0 else max(1.0 / spread, LEAST_BURSTINESS)
