"""Every metric of a trial: name, unit, direction and definition, stated once.

The names are those of the result file of `vllm bench serve` where it has the metric, so that a number can be followed
from the benchmark's JSON through the database and MLflow to the exported script without a translation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Direction(StrEnum):
    """Which way a metric gets better."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


@dataclass(frozen=True)
class Metric:
    """One metric: its name, its unit, which way it gets better, and what exactly it counts."""

    name: str
    unit: str
    direction: Direction
    definition: str


PERCENTILES = (50, 90, 95, 99)

_LATENCIES = {
    "ttft": "time to first token: from sending the request to its first token",
    "tpot": "time per output token: (end-to-end latency - TTFT) / (output tokens - 1), one value a request",
    "itl": "inter-token latency: the gap between two consecutive chunks of one response",
    "e2el": "end-to-end latency: from sending the request to its last token",
}


def _throughputs() -> Iterable[Metric]:
    up = Direction.MAXIMIZE
    yield Metric("output_throughput", "tok/s", up, "output tokens of completed requests / benchmark duration")
    yield Metric("total_token_throughput", "tok/s", up, "input and output tokens of completed requests / duration")
    yield Metric("request_throughput", "req/s", up, "completed requests / benchmark duration")
    yield Metric("success_rate", "share", up, "completed requests / offered requests, in [0, 1]")
    yield Metric("goodput", "req/s", up, "requests that completed within their class's SLO / benchmark duration")
    yield Metric("goodput_share", "share", up, "requests that completed within their class's SLO / offered requests")
    yield Metric("capacity", "req/s", up, "highest request rate at which every SLO held")


def _latencies() -> Iterable[Metric]:
    for name, definition in _LATENCIES.items():
        for statistic in ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES)):
            text = f"{statistic} over completed requests of the {definition}"
            yield Metric(f"{statistic}_{name}_ms", "ms", Direction.MINIMIZE, text)


TRAFFIC_ONLY = frozenset({"goodput", "goodput_share", "capacity"})
"""Metrics that need requests with SLOs of their own; `vllm bench serve` does not give them."""

METRICS: dict[str, Metric] = {m.name: m for m in (*_throughputs(), *_latencies())}


def metric(name: str) -> Metric:
    """Return the metric called `name`; `CLASS.name` is that of one class of requests.

    Two prefixes are no classes: `worst.name` is the worst class's, `client.name` counts a latency from when a request
    was sent and not from when it was due.

    Raises:
        KeyError: with a message that names close matches, if there is no such metric.
    """
    import difflib

    prefix, dot, base = name.rpartition(".")
    if dot and prefix and base in METRICS:
        known = METRICS[base]
        return Metric(name, known.unit, known.direction, f"of {prefix}: {known.definition}")
    if name in METRICS:
        return METRICS[name]
    near = difflib.get_close_matches(name, METRICS, n=3)
    hint = f"; did you mean {', '.join(near)}?" if near else f"; metrics: {', '.join(METRICS)}"
    raise KeyError(f"no metric is called {name!r}{hint}")
