"""The windows of a warm-up: short runs of the load, which are sent until the server does not get faster.

A server compiles kernels for the shapes of its first requests. Windows have the load's own request classes and lengths
in the load's own concurrency, so that they meet these shapes, and other prompts, so that no prefix cache knows them.
docs/design/measurement.md gives the reasons for the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from records.trials import Repeat
from tuner.workloads.request_class import Length, RequestClass, TextFile
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.traffic import Closed, Poisson, Ramp, Traffic

_LONGEST_S = 10.0
"""The time in which the requests of an open loop's window are due; a low rate is raised."""

REQUESTS = 16
SHARE = 0.05
"""Requests of a window of traffic: this share of the load, at least `REQUESTS` and one for each user."""

_OF_EACH_CLASS = 3
"""About as many requests of each class a window has, at least; a rarer class has a higher weight."""

CLOSED_ANSWER_TOKENS = 32
OPEN_ANSWER_TOKENS = 256
"""The longest answers of a window of traffic, where the class's `output` sets them. In an open loop, the number of
requests at once grows with the answers, and kernels depend on it; a closed loop has it from the start."""

TOLERANCES = {"mean_e2el_ms": 1.2, "p99_ttft_ms": 1.5}
"""The highest ratio of a metric of two windows that agree."""

_SMALL_MS = 5.0
"""A difference that is noise, whatever the ratio; a compilation takes longer."""


def window_of(workload: SingleWorkload) -> SingleWorkload | None:
    """Return the workload of a window; None for a workload without a warm-up.

    A closed loop sends one short request for each user, as its warm-up does. Traffic has its own arrivals, classes and
    lengths, up to a longest answer. A ramp becomes arrivals at its highest rate.
    """
    warmup = workload.warmup()
    if warmup is None or isinstance(workload, ClosedLoop):
        return warmup
    kinds = workload.sent_classes
    count = max(
        REQUESTS,
        2 * _OF_EACH_CLASS * len(kinds),
        workload.users or 0,
        math.ceil(SHARE * (workload.requests or 0)),
    )
    least = _OF_EACH_CLASS / count * sum(each.weight for each in kinds.values())
    most = OPEN_ANSWER_TOKENS if workload.users is None else CLOSED_ANSWER_TOKENS
    changes: dict[str, Any] = {
        "requests": count,
        "seed": warmup.seed,
        "duration_s": None if isinstance(workload.arrivals, Closed) else _LONGEST_S,
        "classes": {name: _in_window(each, least, most) for name, each in kinds.items()},
    }
    return _in_time(workload.model_copy(update=changes), count)


def _in_window(kind: RequestClass, least_weight: float, most_tokens: int) -> RequestClass:
    changes: dict[str, Any] = {"weight": max(kind.weight, least_weight)}
    can_end_early = kind.json_schema is None and not isinstance(kind.text, TextFile)
    if kind.output is not None and can_end_early and kind.longest_output() > most_tokens:
        changes["output"] = _at_most(kind.output, most_tokens)
    return kind.without_pauses.model_copy(update=changes)


def _at_most(length: Length, most: int) -> Length:
    """Return lengths of the same kind up to a longest one."""
    if length.uniform is not None:
        return Length(uniform=(min(length.uniform[0], most), most))
    if length.lognormal is not None:
        given = length.lognormal
        changes = {"mean": min(given.mean, most), "min": min(given.min, most), "max": most}
        return Length(lognormal=given.model_copy(update=changes))
    return Length(fixed=most)


def _in_time(window: Traffic, count: int) -> Traffic:
    """Return an open loop whose requests are due within `_LONGEST_S`; a trace is cut there."""
    least = count / _LONGEST_S
    if window.rate is not None:
        return window.at_rate(max(window.rate, least)).model_copy(update={"duration_s": None})
    if isinstance(window.arrivals, Ramp):
        rate = max(window.arrivals.start_rate, window.arrivals.end_rate, least)
        return window.model_copy(update={"arrivals": Poisson(process="poisson", rate=rate), "duration_s": None})
    return window


_WITHOUT_GAIN = 2
"""Windows in a row that are no faster than one before them, after which a server does not get faster."""


def are_settled(windows: Sequence[tuple[Repeat, bool]]) -> bool:
    """Return whether a server is warm after some windows, each with whether kernels were compiled during it.

    The last two agree; or, where windows vary, as on a busy machine, the last two are no faster than one before them.
    Nothing was compiled during the last one, or the last two.
    """
    if len(windows) < 2 or windows[-1][1]:
        return False
    if agree(windows[-2][0], windows[-1][0]):
        return True
    earlier, last = windows[:-_WITHOUT_GAIN], windows[-_WITHOUT_GAIN:]
    if not earlier or any(compiled for _, compiled in last):
        return False
    times = [[each.metrics.get("mean_e2el_ms") for each, _ in part] for part in (earlier, last)]
    known = [[value for value in part if value is not None] for part in times]
    return known[1] == times[1] and bool(known[0]) and min(known[1]) >= min(known[0])


def agree(before: Repeat, after: Repeat) -> bool:
    """Return whether two windows differ by no more than `TOLERANCES`; False if one lacks a metric."""
    return all(_alike(before.metrics.get(name), after.metrics.get(name), most) for name, most in TOLERANCES.items())


def _alike(one: float | None, other: float | None, most: float) -> bool:
    if one is None or other is None:
        return False
    return abs(one - other) <= _SMALL_MS or max(one, other) <= most * min(one, other)
