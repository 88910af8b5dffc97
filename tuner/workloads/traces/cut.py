"""Cut a long recording to a short benchmark, and the distances between both.

A cut is a window of the recording, or a sample of its families in the times of a window. A family is a session, or the
prompts below one shared segment; its members stay together, so that they share as in the whole. In a window, as much
comes between two uses of a prefix as in the whole, which decides what a small cache still has. In a sample, reuse comes
sooner, but none of it is lost. The gaps of a window are stretched to the rate of the whole. The nearest cut is taken.
Kolmogorov–Smirnov distances are those of scipy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from scipy.stats import ks_2samp

from tuner.workloads.prefixes import shared_segments
from tuner.workloads.traces.recording import RecordedRequest
from tuner.workloads.traces.summary import Timeline

TRIED = 200
"""Windows, and samples, of which the nearest one is taken."""

BURST_GAPS = 20
"""Mean gaps over which requests are counted to find bursts."""

MOST_STRETCH = 1.1
"""The largest factor on the gaps of a window. A larger one would change the bursts."""

LOAD_WEIGHT = 5.0
"""How often distances count that change the load: of rate, mean lengths and hit rate."""

FAMILY_SHARE = 0.1
"""The largest family, as a share of the cut: a larger one would make it of one piece."""


@dataclass(frozen=True)
class Distances:
    """How far a cut is from the whole; None for what both do not have.

    Attributes:
        rate: difference of the rates, relative to that of the whole.
        gaps: Kolmogorov–Smirnov distance of the gaps between requests.
        bursts: the same of the number of requests that came before each one within `BURST_GAPS` mean gaps.
        input, output: Kolmogorov–Smirnov distances of the lengths of prompts and answers.
        input_mean, output_mean: differences of their means, relative to those of the whole.
        hit_rate: difference of the shares of prompt tokens that a cache has.
    """

    rate: float | None
    gaps: float | None
    bursts: float | None
    input: float
    output: float
    input_mean: float
    output_mean: float
    hit_rate: float | None

    @property
    def score(self) -> float:
        """The sum of the distances; those that change the load count `LOAD_WEIGHT` times."""
        load = (self.rate, self.input_mean, self.output_mean, self.hit_rate)
        shape = (self.gaps, self.bursts, self.input, self.output)
        return LOAD_WEIGHT * _total(load) + _total(shape)


def _total(found: Iterable[float | None]) -> float:
    return sum(abs(each) for each in found if each is not None)


class Comparison:
    """Compares cuts with the whole, for a server whose cache has so many tokens; None: an endless one."""

    def __init__(self, whole: Timeline, cache_tokens: int | None) -> None:
        self.whole = whole
        self._cache_tokens = cache_tokens
        self._hit_rate = whole.hit_rate(cache_tokens)

    def distances(self, part: Timeline) -> Distances:
        """Return how far a cut is from the whole."""
        rate = part.hit_rate(self._cache_tokens)
        hits = None if self._hit_rate is None or rate is None else rate - self._hit_rate
        return Distances(*_time_distances(self.whole, part), *_request_distances(self.whole, part), hits)


def _time_distances(whole: Timeline, part: Timeline) -> tuple[float | None, float | None, float | None]:
    if whole.rate is None or part.rate is None:
        return None, None, None
    burst_s = BURST_GAPS / whole.rate
    bursts = _ks(_before(whole, burst_s), _before(part, burst_s))
    return part.rate / whole.rate - 1, _ks(whole.gaps_s, part.gaps_s), bursts


def _before(timeline: Timeline, span_s: float) -> list[int]:
    """Return how many requests came within `span_s` before each one."""
    times = np.array(timeline.times_s)
    counts: list[int] = (np.arange(len(times)) - np.searchsorted(times, times - span_s)).tolist()
    return counts


def _request_distances(whole: Timeline, part: Timeline) -> tuple[float, float, float, float]:
    """Return the distances of both lengths, then the differences of their means."""
    pairs = list(zip(_tokens(whole), _tokens(part), strict=True))
    of_input, of_output = (_ks(one, other) for one, other in pairs)
    input_mean, output_mean = (float(np.mean(other) / np.mean(one)) - 1 for one, other in pairs)
    return of_input, of_output, input_mean, output_mean


def _tokens(timeline: Timeline) -> tuple[list[int], list[int]]:
    requests = timeline.requests
    return [each.input_tokens for each in requests], [each.output_tokens for each in requests]


def _ks(one: Sequence[float], other: Sequence[float]) -> float:
    return float(ks_2samp(one, other, method="asymp").statistic)


@dataclass(frozen=True)
class Cut:
    """A cut, and the factor on its recorded gaps that gives it the rate of the whole; 1 without times."""

    timeline: Timeline
    stretch: float = 1.0


def cut(whole: Timeline, count: int, seed: int, cache_tokens: int | None) -> Cut:
    """Return `count` requests that are like the whole, which has more: a window, or sampled families in one's time.

    Args:
        whole: the recording.
        count: number of requests.
        seed: of the samples.
        cache_tokens: as in `Comparison`.
    """
    compared = Comparison(whole, cache_tokens)
    windows = list(_windows(whole, count))
    nearest = min(windows, key=lambda each: _time_score(whole, each.timeline))
    random, families = np.random.default_rng(seed), _families(whole, count)
    samples = [
        replace(nearest, timeline=_sample(whole, families, count, nearest.timeline.times_s, random))
        for _ in range(TRIED)
    ]
    return min([*windows, *samples], key=lambda each: compared.distances(each.timeline).score)


def _windows(whole: Timeline, count: int) -> Iterator[Cut]:
    """Yield windows with `count` requests, whose times begin at 0."""
    last = len(whole.requests) - count
    for first in sorted({round(place) for place in np.linspace(0, last, min(TRIED, last + 1))}):
        times = None if whole.times_s is None else whole.times_s[first : first + count]
        window = Timeline(whole.requests[first : first + count], times, whole.block_tokens)
        stretch = _stretch(whole, window)
        from_0 = None if times is None else [(at - times[0]) * stretch for at in times]
        yield Cut(replace(window, times_s=from_0), stretch)


def _stretch(whole: Timeline, window: Timeline) -> float:
    """Return the factor on the times of a window that gives it the rate of the whole, within `MOST_STRETCH`."""
    if not whole.rate or not window.rate:
        return 1.0
    return min(max(window.rate / whole.rate, 1 / MOST_STRETCH), MOST_STRETCH)


def _time_score(whole: Timeline, part: Timeline) -> float:
    rate, *shape = _time_distances(whole, part)
    return LOAD_WEIGHT * abs(rate or 0.0) + _total(shape)


def _families(whole: Timeline, count: int) -> list[list[int]]:
    """Return the places of the requests of each family.

    A request without a session belongs to the largest shared segment of its prompt that is not too large for a family.
    """
    size = whole.block_tokens or 1
    lengths = [each.input_tokens for each in whole.requests]
    paths = shared_segments([each.blocks for each in whole.requests], lengths, size)
    users = Counter(each.number for path in paths for each in path)
    found: dict[tuple[str, int], list[int]] = {}
    for place, (request, path) in enumerate(zip(whole.requests, paths, strict=True)):
        segment = next((each.number for each in path if users[each.number] <= FAMILY_SHARE * count), None)
        if request.session is not None:
            key = "session", request.session
        else:
            key = ("alone", place) if segment is None else ("segment", segment)
        found.setdefault(key, []).append(place)
    return list(found.values())


def _sample(
    whole: Timeline,
    families: Sequence[Sequence[int]],
    count: int,
    times: Sequence[float] | None,
    random: Generator,
) -> Timeline:
    """Return the requests of random families, in their order; the last family may lose its last ones."""
    places: list[int] = []
    for number in random.permutation(len(families)).tolist():
        places += families[number][: count - len(places)]
        if len(places) == count:
            break
    requests: list[RecordedRequest] = [whole.requests[place] for place in sorted(places)]
    return Timeline(requests, times, whole.block_tokens)
