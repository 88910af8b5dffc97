"""From a simulated run to figures: the metrics of `vllm bench serve`, and the records of traffic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.engines.simulator.clients.client import SimulatedRequest
from tuner.workloads.requests import RequestRecord, RequestStatus

_Seconds = NDArray[np.float64]
_Counts = NDArray[np.int64]
_ERRORS = {
    RequestStatus.TIMED_OUT: "given up before its last token",
    RequestStatus.REFUSED: "refused: longer than max_model_len, or the queue was full",
    RequestStatus.NOT_SENT: "the run ended before it was sent",
}


def bench_metrics(
    jobs: Sequence[SimulatedRequest], seen: _Seconds, interval: int, speculative: bool, percentiles: Sequence[int]
) -> dict[str, float | None]:
    """Return what `vllm bench serve` would write of a run; latencies in ms over completed requests.

    Args:
        jobs: every request.
        seen: seconds at which clients saw the tokens of each step.
        interval: tokens that are sent together.
        speculative: whether sequences got more than one token a step.
        percentiles: to give of each latency.
    """
    done = [job for job in jobs if job.status is RequestStatus.COMPLETED]
    duration = max((job.end_s for job in jobs if job.end_s is not None), default=0.0)
    outputs, inputs = sum(job.prompt.output for job in done), sum(job.prompt.tokens for job in done)
    ttft = np.array([_span(job.sent_s, job.first_s) for job in done])
    whole = np.array([_span(job.sent_s, job.end_s) for job in done])
    lengths = np.array([job.prompt.output for job in done])
    several = lengths > 1
    tpot = (whole[several] - ttft[several]) / (lengths[several] - 1) if done else ttft
    found: dict[str, float | None] = {
        "output_throughput": outputs / duration if done else None,
        "total_token_throughput": (outputs + inputs) / duration if done else None,
        "request_throughput": len(done) / duration if done else None,
        "success_rate": len(done) / len(jobs) if jobs else None,
    }
    for name, values in (("ttft", ttft), ("tpot", tpot), ("e2el", whole)):
        found |= _statistics(name, 1000.0 * values, np.ones(len(values), dtype=np.int64), percentiles)
    gaps, counts = token_gaps(done, seen, interval, speculative)
    return found | _statistics("itl", 1000.0 * gaps, counts, percentiles)


def _span(begin: float | None, end: float | None) -> float:
    assert begin is not None
    assert end is not None
    return end - begin


def _statistics(name: str, values: _Seconds, counts: _Counts, percentiles: Sequence[int]) -> dict[str, float | None]:
    """Return the statistics of values that occur so many times each, as NumPy gives them of all of them."""
    order = np.argsort(values, kind="stable")
    values, ends = values[order], np.cumsum(counts[order])
    total = int(ends[-1]) if len(ends) else 0
    if not total:
        return {f"{each}_{name}_ms": None for each in ("mean", "median", "std", *(f"p{p}" for p in percentiles))}
    weights = counts[order] / total
    mean = float(weights @ values)
    found: dict[str, float | None] = {
        f"mean_{name}_ms": mean,
        f"median_{name}_ms": _percentile(values, ends, 50),
        f"std_{name}_ms": float(np.sqrt(weights @ (values - mean) ** 2)),
    }
    return found | {f"p{p}_{name}_ms": _percentile(values, ends, p) for p in percentiles}


def _percentile(values: _Seconds, ends: _Counts, percentile: float) -> float:
    """Return a percentile of sorted values, interpolated linearly; `ends` are their counts, added up."""
    place = (int(ends[-1]) - 1) * percentile / 100
    low = int(place)
    below, above = np.searchsorted(ends, [low, min(low + 1, int(ends[-1]) - 1)], side="right")
    return float(values[below] + (values[above] - values[below]) * (place - low))


def token_gaps(
    jobs: Sequence[SimulatedRequest], seen: _Seconds, interval: int, speculative: bool
) -> tuple[_Seconds, _Counts]:
    """Return the times between two pieces of one answer, in seconds, and how often each occurs over all jobs."""
    if interval > 1:
        each = [np.diff(chunk_times(job, seen, interval, speculative)) for job in jobs]
        gaps = np.concatenate(each) if each else np.empty(0)
        return gaps, np.ones(len(gaps), dtype=np.int64)
    cover = np.zeros(len(seen) + 1, dtype=np.int64)
    across: list[float] = []
    for job in jobs:
        spans = _spans(job.segments) if speculative else job.segments
        for place, (begin, end) in enumerate(spans):
            cover[begin + 1] += 1
            cover[end] -= 1
            if place:
                across.append(float(seen[begin] - seen[spans[place - 1][1] - 1]))
    gaps = np.concatenate([np.diff(seen, prepend=0.0), np.array(across)])
    return gaps, np.concatenate([np.cumsum(cover)[:-1], np.ones(len(across), dtype=np.int64)])


def _spans(segments: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return from which steps up to, not including, which a sequence got tokens, whatever their number."""
    if not segments:
        return []
    first, last = segments[0][0], segments[-1][0] + 1
    if last - first == len(segments):
        return [(first, last)]
    steps = _pairs(segments)[:, 0]
    begins = [0, *(np.flatnonzero(np.diff(steps) != 1) + 1).tolist()]
    ends = [*begins[1:], len(steps)]
    return [(int(steps[begin]), int(steps[end - 1]) + 1) for begin, end in zip(begins, ends, strict=True)]


def _pairs(segments: Sequence[tuple[int, int]]) -> _Counts:
    """Return segments as rows; `np.array` takes twice as long for it."""
    flat = itertools.chain.from_iterable(segments)
    return np.fromiter(flat, dtype=np.int64, count=2 * len(segments)).reshape(-1, 2)


def chunk_times(job: SimulatedRequest, seen: _Seconds, interval: int, speculative: bool) -> _Seconds:
    """Return when a job's pieces came: the first token at once, then every `interval` tokens, and what is left."""
    if speculative:
        segments = _pairs(job.segments)
        steps, tokens = segments[:, 0], np.cumsum(segments[:, 1])
    else:
        steps = np.concatenate([np.arange(begin, end) for begin, end in job.segments] or [np.empty(0, dtype=np.int64)])
        tokens = np.arange(1, len(steps) + 1)
    if not len(steps):
        return np.empty(0)
    if interval > 1:
        groups = (tokens - 1) // interval
        sent = np.append(groups[1:] != groups[:-1], True)
        sent[0] = True
        steps = steps[sent]
    times: _Seconds = seen[steps.astype(np.int64)]
    return times


def request_record(job: SimulatedRequest, seen: _Seconds, interval: int, speculative: bool) -> RequestRecord:
    """Return the record of a request, as the load generator would have kept it."""
    times = chunk_times(job, seen, interval, speculative)
    if job.end_s is not None:
        times = times[times <= job.end_s]
    completed = job.status is RequestStatus.COMPLETED
    return RequestRecord(
        index=job.prompt.index,
        name=job.name,
        status=job.status,
        planned_input=job.prompt.tokens,
        planned_output=job.prompt.output,
        due_s=job.due_s,
        sent_s=job.sent_s,
        first_token_s=float(times[0]) if len(times) else None,
        end_s=job.end_s if job.sent_s is not None else None,
        input_tokens=job.prompt.tokens if completed else None,
        output_tokens=job.prompt.output if completed else None,
        gaps_s=tuple(np.diff(times).tolist()),
        error=_ERRORS.get(job.status),
    )
