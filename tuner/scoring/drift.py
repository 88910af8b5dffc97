"""Whether the traffic and the latencies of running servers are still those that a study measured.

Windows of some minutes are compared with the study's load, each by a stated distance:

- the rate by its ratio to the study's;
- lengths of prompts and answers by the Kolmogorov-Smirnov distance, the largest difference of two cumulative shares,
  at the edges of the server's histogram;
- sharing by the difference of the share of prompt tokens that the prefix cache has;
- the promise by the share of requests within a bound on a latency. The histogram's first edge at or above the bound
  counts, so that the share is never too low.

A window deviates if a distance exceeds its limit by more than chance explains. For lengths that is
sqrt(ln(2 / α) / 2n) with n requests (Massart, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality",
1990), for shares and rates the normal quantile of 1 - α / 2. Traffic has drifted once `WINDOWS` windows in a row
deviate in the same way: one burst is none.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

ALPHA = 0.001
"""Probability with which chance alone lets one distance of one window deviate."""
WINDOWS = 3
LEAST_REQUESTS = 30
"""A window with fewer requests says nothing of lengths, sharing and latencies."""
RATE_LIMIT = 1.2
"""A rate this many times the study's: its SLOs were measured at no higher one."""
LENGTH_LIMIT = 0.2
"""Recorded half hours differ by up to 0.27 in single windows (docs/reports/2026-11-28-drift.md)."""
SHARING_LIMIT = 0.1
PROMISE_LIMIT = 0.02


@dataclass(frozen=True)
class Histogram:
    """Counts by buckets: `counts[i]` values lie above `edges[i - 1]`, at most at `edges[i]`; the last edge is inf."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]

    @property
    def total(self) -> float:
        """The number of values."""
        return sum(self.counts)

    @property
    def cumulative(self) -> list[float]:
        """The share of values at or below each edge; the total is not 0."""
        return [count / self.total for count in accumulate(self.counts)]

    def within(self, bound: float) -> float:
        """Return the share of values within a bound, at most: up to the first edge at or above it."""
        place = next(place for place, edge in enumerate(self.edges) if edge >= bound)
        return self.cumulative[place]


@dataclass(frozen=True)
class Window:
    """What servers counted in a window; None for what they do not count.

    Attributes:
        seconds: its length.
        requests: that ended in it.
        histograms: of `prompt` and `answer` in tokens, and of latencies in seconds, by their names.
        sharing: share of prompt tokens that the prefix cache had, in [0, 1].
    """

    seconds: float
    requests: float
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    sharing: float | None = None


@dataclass(frozen=True)
class Promise:
    """What a study measured, and under which load; None for what it does not know.

    Attributes:
        rate: requests per second that one server got; None for a closed loop.
        lengths: tokens of `prompt` and `answer` of its requests, ascending.
        sharing: as in `Window`, measured.
        bounds: bound in seconds and promised share of requests within it, by the latency's name.
    """

    rate: float | None
    lengths: Mapping[str, Sequence[float]] = field(default_factory=dict)
    sharing: float | None = None
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Deviation:
    """A property of a window that deviates (`rate`, `prompt`, `answer`, `sharing`, or a latency), and how in words."""

    name: str
    text: str


def deviations(promise: Promise, window: Window, servers: int = 1) -> Iterator[Deviation]:
    """Yield what deviates in a window of `servers` servers together."""
    yield from _of_rate(promise, window, servers)
    if window.requests < LEAST_REQUESTS:
        return
    for name, lengths in promise.lengths.items():
        if (found := window.histograms.get(name)) is not None and found.total:
            distance = kolmogorov_smirnov(found, lengths)
            limit = LENGTH_LIMIT + math.sqrt(math.log(2 / ALPHA) / (2 * found.total))
            if distance > limit:
                text = f"{name} lengths differ by {distance:.2f}, at most {limit:.2f} is chance"
                yield Deviation(name, text)
    if promise.sharing is not None and window.sharing is not None:
        distance = abs(window.sharing - promise.sharing)
        limit = SHARING_LIMIT + _quantile() * _share_error(promise.sharing, window.requests)
        if distance > limit:
            shares = f"{window.sharing:.0%} of the prompt tokens are cached, {promise.sharing:.0%} in the study"
            yield Deviation("sharing", shares)
    yield from _of_promise(promise, window)


def _of_rate(promise: Promise, window: Window, servers: int) -> Iterator[Deviation]:
    if promise.rate is None or not window.requests:
        return
    each = window.requests / window.seconds / servers
    ratio = each / promise.rate
    limit = RATE_LIMIT * (1 + _quantile() / math.sqrt(window.requests))
    if ratio > limit:
        text = f"a server gets {each:.3g} requests/s, {promise.rate:.3g} in the study"
        yield Deviation("rate", text)


def _of_promise(promise: Promise, window: Window) -> Iterator[Deviation]:
    for name, (bound, share) in promise.bounds.items():
        found = window.histograms.get(name)
        if found is None or not found.total:
            continue
        within = found.within(bound)
        limit = PROMISE_LIMIT + _quantile() * _share_error(share, found.total)
        if share - within > limit:
            text = (
                f"at most {within:.1%} of the requests have a {name} of {1000 * bound:g} ms, {share:.1%} in the study"
            )
            yield Deviation(name, text)


def _quantile() -> float:
    return statistics.NormalDist().inv_cdf(1 - ALPHA / 2)


def _share_error(share: float, count: float) -> float:
    """Return the standard error of a share of `count` requests; of 0 and 1 that of one request in `count`."""
    kept = min(max(share, 1 / count), 1 - 1 / count)
    return math.sqrt(kept * (1 - kept) / count)


def kolmogorov_smirnov(found: Histogram, sample: Sequence[float]) -> float:
    """Return the largest difference at the edges of the cumulative shares of a histogram and an ascending sample."""
    below = [bisect_right(sample, edge) / len(sample) for edge in found.edges]
    return max(abs(one - other) for one, other in zip(found.cumulative, below, strict=True))


@dataclass
class DriftWatch:
    """Counts, by property, the windows in a row that deviate."""

    promise: Promise
    servers: int = 1
    rows: dict[str, int] = field(default_factory=dict)

    def add(self, window: Window) -> list[Deviation]:
        """Return the deviations that have lasted for `WINDOWS` windows, this one included."""
        found = list(deviations(self.promise, window, self.servers))
        self.rows = {each.name: self.rows.get(each.name, 0) + 1 for each in found}
        return [each for each in found if self.rows[each.name] >= WINDOWS]
