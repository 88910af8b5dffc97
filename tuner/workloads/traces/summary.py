"""What a recording is like: rate over time, lengths, shared prefixes and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tuner.workloads.prefixes import CachedRequest, cache_hits, ideal_hits, shared_segments
from tuner.workloads.traces.recording import RecordedRequest

PARTS = 10
"""Equal parts of a recording whose rates are shown."""


@dataclass(frozen=True)
class Timeline:
    """Requests with their times.

    Attributes:
        requests: in the order of their arrival.
        times_s: of the requests, in seconds; None: there are none.
        block_tokens: tokens of a block; None: the requests have no blocks.
    """

    requests: Sequence[RecordedRequest]
    times_s: Sequence[float] | None
    block_tokens: int | None

    @property
    def span_s(self) -> float | None:
        """Seconds from the first request to the last; None without times."""
        return None if self.times_s is None else self.times_s[-1] - self.times_s[0]

    @property
    def rate(self) -> float | None:
        """Mean requests/s; None without times, or if all arrive at once."""
        return (len(self.requests) - 1) / self.span_s if self.span_s else None

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between one request and the next; empty without times."""
        return [after - before for before, after in pairwise(self.times_s or ())]

    def shared_tokens(self, cache_tokens: int | None = None) -> int | None:
        """Return the prompt tokens that a cache of a size has (None: an endless one); None without blocks."""
        if self.block_tokens is None:
            return None
        if cache_tokens is not None:
            cached = [CachedRequest(each.blocks, each.input_tokens, each.output_tokens) for each in self.requests]
            return sum(cache_hits(cached, self.block_tokens, cache_tokens))
        lengths = [each.input_tokens for each in self.requests]
        return sum(ideal_hits(shared_segments([each.blocks for each in self.requests], lengths, self.block_tokens)))

    def hit_rate(self, cache_tokens: int | None = None) -> float | None:
        """Return the share of prompt tokens that a cache has; see `shared_tokens`."""
        shared = self.shared_tokens(cache_tokens)
        return None if shared is None else shared / sum(each.input_tokens for each in self.requests)


@dataclass(frozen=True)
class Lengths:
    """Lengths in tokens: mean, percentiles and the longest."""

    mean: float
    p50: int
    p95: int
    longest: int


@dataclass(frozen=True)
class Sessions:
    """Sessions: how many, the requests that belong to one, and the mean and the most of one session."""

    count: int
    requests: int
    mean_requests: float
    most_requests: int


@dataclass(frozen=True)
class TraceSummary:
    """What a recording is like.

    Attributes:
        requests: number of requests.
        span_s, rate: as in `Timeline`.
        rates: requests/s in equal parts of the time; empty without times.
        gap_cv: standard deviation of the gaps between requests over their mean: 1 for Poisson arrivals, above for
            bursts; None without times.
        input, output: lengths of prompts and answers.
        block_tokens: as in `Recording`.
        shared_tokens, hit_rate: as `Timeline` returns them.
        sessions: None: no request belongs to one.
    """

    requests: int
    span_s: float | None
    rate: float | None
    rates: tuple[float, ...]
    gap_cv: float | None
    input: Lengths
    output: Lengths
    block_tokens: int | None
    shared_tokens: int | None
    hit_rate: float | None
    sessions: Sessions | None


def summary_of(timeline: Timeline) -> TraceSummary:
    """Return what a recording is like."""
    requests, gaps = timeline.requests, timeline.gaps_s
    shared = timeline.shared_tokens()
    total = sum(each.input_tokens for each in requests)
    return TraceSummary(
        requests=len(requests),
        span_s=timeline.span_s,
        rate=timeline.rate,
        rates=tuple(_rates(timeline)),
        gap_cv=float(np.std(gaps) / np.mean(gaps)) if gaps and np.mean(gaps) > 0 else None,
        input=_lengths([each.input_tokens for each in requests]),
        output=_lengths([each.output_tokens for each in requests]),
        block_tokens=timeline.block_tokens,
        shared_tokens=shared,
        hit_rate=None if shared is None else shared / total,
        sessions=_sessions(requests),
    )


def _rates(timeline: Timeline) -> list[float]:
    if not timeline.span_s:
        return []
    counts, _ = np.histogram(np.array(timeline.times_s), bins=PARTS)
    return [float(count) * PARTS / timeline.span_s for count in counts]


def _lengths(tokens: Sequence[int]) -> Lengths:
    p50, p95 = np.percentile(tokens, [50, 95], method="inverted_cdf")
    return Lengths(float(np.mean(tokens)), int(p50), int(p95), max(tokens))


def _sessions(requests: Sequence[RecordedRequest]) -> Sessions | None:
    counts: dict[int, int] = {}
    for each in requests:
        if each.session is not None:
            counts[each.session] = counts.get(each.session, 0) + 1
    if not counts:
        return None
    members = sum(counts.values())
    return Sessions(len(counts), members, members / len(counts), max(counts.values()))
