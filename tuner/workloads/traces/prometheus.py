"""Counters of vLLM from Prometheus, the JSON of `/api/v1/query_range`: requests are drawn from what they counted.

The query selects raw counters (`SELECTED`); the answer has a value of each series at each step. Between two steps a
counter grew by the difference of its values, or by the later one if that is smaller, as after a restart. Series of
several servers are added.

The requests of a step arrive at random times within it, as many as the counters say: a Poisson process, given its
count. Lengths are drawn at even ranks from the step's histograms, so the drawn shares of buckets are the counted ones.
Within a bucket (a, b] a length is a + (b - a) u^g, rounded up, for u in (0, 1), with the g of all steps for which the
mean is the counted one.

Prompt and answer of a request are drawn apart. Prompts begin with blocks of one text, so many that an ideal cache has
the share of prompt tokens that the servers' caches had.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import UserError
from tuner.workloads.traces.recording import Recorder, Recording
from tuner.workloads.traces.source import TraceFormat, TraceSource

PROMPT, ANSWER = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
FINISHED, HITS, QUERIES = (
    "vllm:request_success_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
)
SELECTED = f"({PROMPT}|{ANSWER})_(bucket|sum)|{FINISHED}|{HITS}|{QUERIES}"
"""Names of the series that are read, as a regular expression."""

MOST_REQUESTS = 1_000_000
BLOCK_TOKENS = 16
"""Tokens of a block of a shared beginning, as vLLM's cache has them by default."""
_SEED = 1000
_FORM = "the JSON of a range query of Prometheus that selects vLLM's counters (docs/workloads.md)"
_BUCKET = "_bucket"
_LEAST_G, _MOST_G = 0.01, 100.0

Draws = NDArray[np.float64]


@dataclass
class _Step:
    """The counts of all servers from one step of the query to the next: sums by name, and counts by upper edge."""

    begin_s: float
    end_s: float
    totals: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    buckets: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))

    def counts(self, name: str) -> tuple[list[float], list[float]]:
        """Return the upper edges of a histogram's buckets, and the count of each bucket."""
        edges = sorted(self.buckets.get(name, {}))
        below = [self.buckets[name][edge] for edge in edges]
        return edges, [max(count - lower, 0.0) for lower, count in pairwise([0.0, *below])]

    def of(self, name: str) -> float:
        """Return the requests that a histogram counted."""
        return self.buckets.get(name, {}).get(math.inf, 0.0)


def read_prometheus(source: TraceSource) -> Recording:
    """Return requests that are drawn from the counters of an answer of Prometheus.

    Raises:
        UserError: for another answer, one without vLLM's counters, or too many requests.
    """
    steps = _steps(source)
    counted = sum(step.of(PROMPT) for step in steps)
    if not counted or not any(step.of(ANSWER) for step in steps):
        raise UserError(f"{source.file}: no request was counted in {PROMPT} and {ANSWER}; give {_FORM}")
    if counted > MOST_REQUESTS:
        rule = f"{counted:,.0f} requests were counted, and {MOST_REQUESTS:,} are the most"
        raise UserError(f"{source.file}: {rule}; ask for a shorter time")
    shape = {name: _fitted(steps, name) for name in (PROMPT, ANSWER)}
    hit_rate = _hit_rate(steps)
    recorder, random, left = Recorder(source.file, PROMETHEUS.title), np.random.default_rng(_SEED), 0.0
    for step in steps:
        left += step.of(PROMPT)
        count, left = int(left + 0.5), left - int(left + 0.5)  # parts of a request go to the next step
        times = np.sort(random.uniform(step.begin_s, step.end_s, max(count, 0)))
        prompts, answers = (random.permutation(_drawn(step, name, len(times), shape[name])) for name in shape)
        for at, prompt, answer in zip(times, prompts, answers, strict=True):
            shared = 0 if hit_rate is None else round(hit_rate * prompt / BLOCK_TOKENS)
            recorder.add(float(at), int(prompt), int(answer), range(shared))
    remarks = _remarks(steps, hit_rate, counted)
    size = None if hit_rate is None else BLOCK_TOKENS
    return recorder.recording(_FORM, unit="s", block_tokens=size, remarks=remarks)


def _steps(source: TraceSource) -> list[_Step]:
    """Return the counts between each two steps of the query."""
    steps: dict[tuple[float, float], _Step] = {}
    for name, edge, values in _series(source):
        for (before, first), (at, last) in pairwise(values):
            step = steps.setdefault((before, at), _Step(before, at))
            grown = last - first if last >= first else last
            if edge is None:
                step.totals[name] += grown
            else:
                step.buckets[name.removesuffix(_BUCKET)][edge] += grown
    return [steps[key] for key in sorted(steps)]


def _series(source: TraceSource) -> list[tuple[str, float | None, list[tuple[float, float]]]]:
    """Return name, upper edge (None: no bucket), and times with values of each series."""
    answer = source.first
    if answer.get("status") != "success":
        raise UserError(f"{source.file}: Prometheus answered: {str(answer.get('error'))[:200]}; correct the query")
    found = []
    try:
        for series in answer["data"]["result"]:
            name = str(series["metric"].get("__name__"))
            edge = float(series["metric"]["le"]) if name.endswith(_BUCKET) else None
            values = [(float(at), float(value)) for at, value in series["values"]]
            if not np.isfinite(values).all():
                raise ValueError(name)
            found.append((name, edge, values))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{source.file}: its series are not counters with times and values; give {_FORM}") from None
    return found


def _hit_rate(steps: Sequence[_Step]) -> float | None:
    """Return the share of prompt tokens that the caches had; None where they were not counted."""
    hits, queries = (sum(step.totals.get(name, 0.0) for step in steps) for name in (HITS, QUERIES))
    return min(hits / queries, 1.0) if queries else None


def _fitted(steps: Sequence[_Step], name: str) -> float:
    """Return the g for which the mean of the drawn lengths is the counted one; 1 where no sum was counted."""
    total = sum(step.totals.get(f"{name}_sum", 0.0) for step in steps)
    count = sum(step.of(name) for step in steps)
    if not total or not count:
        return 1.0

    def mean(g: float) -> float:
        return sum(_sum(*step.counts(name), g) for step in steps) / count

    least, most = math.log(_LEAST_G), math.log(_MOST_G)
    for _ in range(50):  # the mean falls with g
        middle = (least + most) / 2
        least, most = (middle, most) if mean(math.exp(middle)) > total / count else (least, middle)
    return math.exp(middle)


def _sum(edges: Sequence[float], counts: Sequence[float], g: float) -> float:
    """Return the expected sum of lengths: u^g has the mean 1 / (1 + g), and rounding up adds a half."""
    ends = _bounds(edges)
    return sum(
        count * (low + (high - low) / (1.0 + g) + 0.5 * (high > low))
        for (low, high), count in zip(ends, counts, strict=True)
    )


def _bounds(edges: Sequence[float]) -> list[tuple[float, float]]:
    """Return both ends of each bucket; the last one has no upper end, and its lengths are the highest edge."""
    lows = [0.0, *edges[:-1]]
    return [(low, low if math.isinf(high) else high) for low, high in zip(lows, edges, strict=True)]


def _drawn(step: _Step, name: str, count: int, g: float) -> Draws:
    """Return `count` lengths of a step's histogram, at even ranks; of an empty one, 1 each."""
    edges, counts = step.counts(name)
    if not count or not sum(counts):
        return np.ones(count)
    ends = np.cumsum(counts)
    ranks = (np.arange(count) + 0.5) / count * ends[-1]
    places = np.minimum(np.searchsorted(ends, ranks), len(counts) - 1)
    within = (ranks - (ends - counts)[places]) / np.asarray(counts)[places]
    lows, highs = np.asarray(_bounds(edges)).T
    lengths: Draws = np.maximum(np.ceil(lows[places] + (highs - lows)[places] * within**g), 1.0)
    return lengths


def _remarks(steps: Sequence[_Step], hit_rate: float | None, counted: float) -> tuple[str, ...]:
    """Return how the requests were drawn, and which facts counters do not tell."""
    length = max(step.end_s - step.begin_s for step in steps)
    found = [
        f"drawn from counters in steps of {length:g} s: bursts within a step are not known, and are Poisson",
        "prompts and answers are drawn apart: whether long prompts have long answers is not known",
        "prefix sharing is not known, and none is made: the caches were not counted"
        if hit_rate is None
        else f"the caches had {hit_rate:.1%} of the prompt tokens: all prompts begin alike for that; which prompts"
        " share text, and what a larger cache had found, is not known",
    ]
    for what, name in (("prompts", PROMPT), ("answers", ANSWER)):
        edges = _edges(steps, name)
        longer = sum(step.counts(name)[1][-1] for step in steps if step.counts(name)[1])
        if longer and len(edges) > 1:
            found.append(f"{longer:,.0f} {what} longer than {edges[-2]:,.0f} tokens are drawn with that length")
    finished = sum(step.totals.get(FINISHED, 0.0) for step in steps)
    if finished and abs(finished - counted) > 0.01 * counted:
        found.append(f"{counted:,.0f} requests are drawn, as their lengths counted; {FINISHED} counted {finished:,.0f}")
    return tuple(found)


def _edges(steps: Sequence[_Step], name: str) -> list[float]:
    """Return the edges of a histogram's buckets in all steps."""
    return sorted({edge for step in steps for edge in step.buckets.get(name, {})})


def _is_answer(source: TraceSource) -> bool:
    data: Mapping[str, Any] | None = source.first.get("data")
    return (isinstance(data, Mapping) and "resultType" in data) or (
        source.first.get("status") == "error" and "errorType" in source.first
    )


PROMETHEUS = TraceFormat(
    "Prometheus", "https://prometheus.io/docs/prometheus/latest/querying/api/", _is_answer, read_prometheus
)
