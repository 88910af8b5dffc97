"""The metrics of a benchmark: names, units, directions and texts.

The names are those of the result file of `vllm bench serve` where that file has the metric. A number keeps its name
from the benchmark's result file through the database and MLflow to the exported script. `docs/metrics.md` lists all
metrics; a test compares it with this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from records.plugins import plugins, unusable

GROUP = "tuner.metrics"
"""The entry point group: each entry is a `Metric` with `of_requests`."""


class Direction(StrEnum):
    """Whether a metric is better when it is higher or when it is lower."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


@dataclass(frozen=True)
class Metric:
    """A metric of a trial.

    Attributes:
        name: its name, the same in objectives, SLOs, the database, MLflow and result files.
        unit: `tok/s`, `req/s`, `ms`, `share`, `per Mtok` or `J/tok`. A share is in [0, 1]; `per Mtok` is units of a
            currency for a million tokens, `J/tok` is joules per token.
        direction: which values are better.
        meaning: one sentence that says what is measured, and in which unit.
        of_requests: computes it from the records of requests (`tuner.workloads.results.RequestRecord`) and the duration
            in seconds, for all requests and for each class; None where it is absent. Metrics of the tuner have none.
    """

    name: str
    unit: str
    direction: Direction
    meaning: str
    of_requests: Callable[[Sequence[Any], float | None], float | None] | None = None


PERCENTILES = (50, 90, 95, 99)
"""Percentiles of each latency; they interpolate linearly between order statistics."""

TOKEN_GOODPUTS = frozenset({"output_goodput", "total_token_goodput"})
"""Token throughputs of the requests that met the SLO of their class."""

TRAFFIC_ONLY = TOKEN_GOODPUTS | {
    *("goodput", "goodput_share", "session_goodput_share", "capacity", "goodput_per_gpu", "output_goodput_per_gpu"),
}
"""Metrics that need requests with SLOs of their own, which only traffic has. `vllm bench serve` lacks them."""

COSTS = frozenset({"cost_per_million_output_tokens", "cost_per_million_total_tokens"})
"""Metrics that follow from a token throughput and the price of a GPU-hour (`tuner/scoring/cost.py`)."""

PER_GPU = {
    f"{rate}_per_gpu": rate
    for rate in ("output_throughput", "total_token_throughput", "request_throughput", "goodput", "output_goodput")
}
"""Rates for each GPU of the server by the rate that they divide (`tuner/scoring/cost.py`)."""

ENERGY = "joules_per_output_token"
"""The metric that needs a GPU with an energy counter."""

OF_WHOLE_GPU = COSTS | {ENERGY} | frozenset(PER_GPU)
"""Metrics of the whole GPU: they exist for a workload, not for a class of its requests. No load generator has them."""

LATENCIES = {
    "ttft": ("time to first token", "from sending a request to its first token"),
    "tpot": ("time per output token", "(end-to-end latency - TTFT) / (output tokens - 1), one value for each request"),
    "itl": ("inter-token latency", "each gap between two consecutive chunks of one response"),
    "e2el": ("end-to-end latency", "from sending a request to its last token"),
}
"""Latencies of a request by their short names: what each is called, and what it is."""

_STATISTICS = {"mean": "Mean", "median": "Median", "std": "Standard deviation of the"} | {
    f"p{p}": f"{p}th percentile of the" for p in PERCENTILES
}


def _rates_and_shares() -> Iterable[Metric]:
    higher = Direction.MAXIMIZE
    yield Metric(
        "output_throughput",
        "tok/s",
        higher,
        "Output tokens of completed requests divided by the duration of the benchmark, in tokens per second.",
    )
    yield Metric(
        "total_token_throughput",
        "tok/s",
        higher,
        "Input and output tokens of completed requests divided by the duration of the benchmark, in tokens per second.",
    )
    yield Metric(
        "request_throughput",
        "req/s",
        higher,
        "Completed requests divided by the duration of the benchmark, in requests per second.",
    )
    yield Metric("success_rate", "share", higher, "Completed requests as a share of all offered requests, from 0 to 1.")
    yield from _goodputs()
    yield Metric(
        "quality",
        "share",
        higher,
        "Accuracy on the questions of a task, from 0 to 1, divided by the unquantized model's accuracy.",
    )
    yield Metric("capacity", "req/s", higher, "Highest request rate at which every SLO held, in requests per second.")


def _goodputs() -> Iterable[Metric]:
    higher = Direction.MAXIMIZE
    yield Metric(
        "goodput",
        "req/s",
        higher,
        "Requests that met the SLO of their class divided by the duration of the benchmark, in requests per second.",
    )
    yield Metric(
        "goodput_share",
        "share",
        higher,
        "Requests that met the SLO of their class as a share of all offered requests, from 0 to 1.",
    )
    yield Metric(
        "session_goodput_share",
        "share",
        higher,
        "Sessions all of whose requests met the SLO of their class as a share of all offered sessions, from 0 to 1; "
        "absent without sessions.",
    )
    yield Metric(
        "output_goodput",
        "tok/s",
        higher,
        "Output tokens of requests that met the SLO of their class divided by the duration of the benchmark, in tokens "
        "per second.",
    )
    yield Metric(
        "total_token_goodput",
        "tok/s",
        higher,
        "Input and output tokens of requests that met the SLO of their class divided by the duration of the benchmark, "
        "in tokens per second.",
    )


def _costs() -> Iterable[Metric]:
    lower = Direction.MINIMIZE
    for kind, tokens in (("output", "output"), ("total", "input and output")):
        meaning = (
            f"Price of the GPUs for the time in which a million {tokens} tokens are served, in currency units per "
            "million tokens; with traffic whose classes have SLOs, only tokens of requests that met theirs count."
        )
        yield Metric(f"cost_per_million_{kind}_tokens", "per Mtok", lower, meaning)
    yield Metric(
        ENERGY,
        "J/tok",
        lower,
        "Energy of the GPUs during the benchmark divided by the output tokens of completed requests, in joules per "
        "token; absent where the GPUs have no energy counter, and in simulations.",
    )


def _per_gpu() -> Iterable[Metric]:
    for name, rate in PER_GPU.items():
        unit = "tok/s" if rate.startswith(("output", "total")) else "req/s"
        what = "tokens" if unit == "tok/s" else "requests"
        meaning = (
            f"The `{rate}` divided by the GPUs that the server uses, in {what} per second; of trials with several GPUs."
        )
        yield Metric(name, unit, Direction.MAXIMIZE, meaning)


def _latencies() -> Iterable[Metric]:
    for short, (latency, detail) in LATENCIES.items():
        for statistic, words in _STATISTICS.items():
            meaning = f"{words} {latency} of completed requests, in milliseconds: {detail}."
            yield Metric(f"{statistic}_{short}_ms", "ms", Direction.MINIMIZE, meaning)


METRICS: dict[str, Metric] = {each.name: each for each in (*_rates_and_shares(), *_per_gpu(), *_costs(), *_latencies())}
"""The tuner's own metrics by name, without the prefixes that `metric` accepts."""


@cache
def registered() -> Mapping[str, Metric]:
    """Return the metrics that installed packages add, by name; they need requests, as those of `TRAFFIC_ONLY` do.

    Raises:
        PluginError: for one that has no `of_requests`, an unknown unit, or a name with a dot or of another metric.
    """
    found: dict[str, Metric] = {}
    units = {each.unit for each in METRICS.values()}
    for entry, each in plugins(GROUP, Metric):
        if each.of_requests is None:
            raise unusable(entry, "has no `of_requests`")
        if each.unit not in units:
            raise unusable(entry, f"has the unit {each.unit!r}, and units are {', '.join(sorted(units))}")
        if not each.name.isidentifier() or each.name in (*METRICS, *found):
            raise unusable(entry, f"has the name {each.name!r}, which is taken or no identifier")
        found[each.name] = each
    return found


def shown_unit(name: str, currency: str | None = None) -> str:
    """Return the unit that is shown beside a metric, of a cost with its currency: `USD per Mtok`.

    It is empty where the name ends in it, for a share and for an unknown metric.
    """
    try:
        unit = metric(name).unit
    except KeyError:
        return ""
    if unit == "share" or name.endswith(f"_{unit}"):
        return ""
    return f"{currency} {unit}" if currency and name.rpartition(".")[2] in COSTS else unit


def metric(name: str) -> Metric:
    """Return the metric called `name`.

    Args:
        name: a name of `METRICS` or `registered`, or one with a prefix. `CLASS.name` covers one request class,
            `WORKLOAD.name` one workload of a suite. `worst.name` is the value of the request class that has the worst
            one. `client.name` is a latency from when a request was sent, instead of from when it was due.

    Raises:
        KeyError: if there is no such metric. The message lists similar names.
    """
    prefix, dot, base = name.rpartition(".")
    known = METRICS if base in METRICS else {**METRICS, **registered()}
    if dot and prefix and base in known:
        unprefixed = known[base]
        return Metric(name, unprefixed.unit, unprefixed.direction, f"For {_scope(prefix)}: {unprefixed.meaning}")
    if name in known:
        return known[name]
    word = name.lower().replace("-", "_").replace("latency", "e2el").replace("e2e_", "e2el_")
    near = difflib.get_close_matches(word, known, n=3)
    near = near or [f"p99_{part}_ms" for part in word.split("_") if part in LATENCIES]
    hint = f"; did you mean {', '.join(near)}?" if near else f"; metrics: {', '.join(known)}"
    raise KeyError(f"no metric is called {name!r}{hint}")


def _scope(prefix: str) -> str:
    workload, _, last = prefix.rpartition(".")
    scope = {
        "worst": "the worst request class",
        "client": "all request classes, with latencies from when a request was sent",
    }.get(last, last)
    return f"{scope} of {workload}" if workload else scope
