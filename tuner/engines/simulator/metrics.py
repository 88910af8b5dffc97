"""The result of a simulated run, and its metrics: those of `vllm bench serve`, and the requests.

All gaps between tokens of all requests would be a large array. Without speculation, every decoding request has the same
gaps while it decodes, so the gaps are stored once with the number of requests that have them, and the statistics are
weighted. They equal NumPy's on the full array.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.engines.simulator.client import SimulatedRequest
from tuner.engines.simulator.replica import Replica, SimulationTrace
from tuner.engines.simulator.scheduler import SchedulerCounts
from tuner.engines.simulator.serve_config import ServeConfig
from tuner.workloads.results import RequestRecord, RequestStatus

_Seconds = NDArray[np.float64]
_Counts = NDArray[np.int64]
_ERRORS = {
    RequestStatus.TIMED_OUT: "given up before its last token",
    RequestStatus.REFUSED: "refused: longer than max_model_len, or the queue was full",
    RequestStatus.NOT_SENT: "the run ended before it was sent",
}


@dataclass(frozen=True)
class SimulatedRun:
    """The result of one workload.

    Attributes:
        requests: every request of the workload.
        received_s: when clients received the tokens of each step, in seconds.
        trace: the server's state over time.
        counts: the scheduler's counters.
        seconds: the time of all steps by its cause, as in `StepTime`.
        flops: the arithmetic that the tokens need.
        bytes: the memory traffic that the tokens need.
        sufficient: blocks of each replica with which the run goes the same way; see `BlockPool.sufficient`.
        config: of each server.
    """

    requests: list[SimulatedRequest]
    received_s: _Seconds
    trace: SimulationTrace
    counts: SchedulerCounts
    seconds: Mapping[str, float]
    flops: float
    bytes: float
    sufficient: int | None
    config: ServeConfig

    @property
    def all_ended(self) -> bool:
        """Whether every request ended, with any status, before the run did."""
        return not any(request.in_flight or request.end_s is None for request in self.requests)

    @property
    def completed(self) -> int:
        """The number of completed requests; a trial without one has failed."""
        return sum(request.status is RequestStatus.COMPLETED for request in self.requests)

    @property
    def duration_s(self) -> float:
        """Seconds until the last request ended."""
        return max((request.end_s or 0.0 for request in self.requests), default=0.0)

    @property
    def time_shares(self) -> dict[str, float]:
        """The share of each part of an engine step in the time of all steps."""
        total = sum(self.seconds.values()) or 1.0
        return {name: seconds / total for name, seconds in self.seconds.items()}

    def records(self) -> list[RequestRecord]:
        """Return the record of each request as the load generator writes it."""
        return [self._record(request) for request in self.requests]

    def _record(self, request: SimulatedRequest) -> RequestRecord:
        times = chunk_times(request, self.received_s, self.config.stream_interval, self._speculative)
        if request.end_s is not None:
            times = times[times <= request.end_s]
        completed = request.status is RequestStatus.COMPLETED
        return RequestRecord(
            index=request.prompt.index,
            name=request.name,
            status=request.status,
            planned_input=request.prompt.tokens,
            planned_output=request.prompt.output,
            due_s=request.due_s,
            sent_s=request.sent_s,
            first_token_s=float(times[0]) if len(times) else None,
            end_s=request.end_s if request.sent_s is not None else None,
            input_tokens=request.prompt.tokens if completed else None,
            output_tokens=request.prompt.output if completed else None,
            gaps_s=tuple(np.diff(times).tolist()),
            error=request.error or _ERRORS.get(request.status),
            session=request.session,
            turn=request.turn,
        )

    @property
    def _speculative(self) -> bool:
        """Whether a sequence may get several tokens in a step."""
        return self.config.speculation is not None

    def bench_metrics(self, percentiles: Sequence[int]) -> dict[str, float | None]:
        """Return the metrics that `vllm bench serve` writes; latencies are in ms over completed requests."""
        completed = [request for request in self.requests if request.status is RequestStatus.COMPLETED]
        duration = self.duration_s
        outputs = sum(request.prompt.output for request in completed)
        inputs = sum(request.prompt.tokens for request in completed)
        ttft = np.array([_difference(request.sent_s, request.first_s) for request in completed])
        e2el = np.array([_difference(request.sent_s, request.end_s) for request in completed])
        lengths = np.array([request.prompt.output for request in completed])
        several = lengths > 1
        tpot = (e2el[several] - ttft[several]) / (lengths[several] - 1) if completed else ttft
        metrics: dict[str, float | None] = {
            "output_throughput": outputs / duration if completed else None,
            "total_token_throughput": (outputs + inputs) / duration if completed else None,
            "request_throughput": len(completed) / duration if completed else None,
            "success_rate": len(completed) / len(self.requests) if self.requests else None,
        }
        for name, values in (("ttft", ttft), ("tpot", tpot), ("e2el", e2el)):
            metrics |= _statistics(name, 1000.0 * values, np.ones(len(values), dtype=np.int64), percentiles)
        gaps, counts = token_gaps(completed, self.received_s, self.config.stream_interval, self._speculative)
        return metrics | _statistics("itl", 1000.0 * gaps, counts, percentiles)


def merged_run(requests: list[SimulatedRequest], replicas: Sequence[Replica], config: ServeConfig) -> SimulatedRun:
    """Return the result of all replicas.

    The steps of the replicas follow one another in `received_s`, and the requests' segments are moved to the steps of
    their own replica. Counters are summed, and so are busy seconds, which servers on one GPU spend together.
    """
    offset = 0
    for replica in replicas:
        for request in replica.ended if offset else ():
            request.segments = replica.moved(request.segments, offset)
        offset += len(replica.trace.received_s)
    times = [replica.time for replica in replicas]
    causes = dict.fromkeys(cause for time in times for cause in time.seconds)
    return SimulatedRun(
        requests=requests,
        received_s=np.concatenate([np.array(replica.trace.received_s) for replica in replicas]),
        trace=_merged_trace([replica.trace for replica in replicas], config.servers_per_gpu),
        counts=summed([replica.scheduler.counts for replica in replicas]),
        seconds={cause: sum(time.seconds.get(cause, 0.0) for time in times) for cause in causes},
        flops=sum(time.flops for time in times),
        bytes=sum(time.bytes for time in times),
        sufficient=_most([replica.scheduler.pool.sufficient for replica in replicas]),
        config=config,
    )


def _most(counts: Sequence[int | None]) -> int | None:
    """Return the largest count; None if one of them is unknown."""
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def _merged_trace(traces: Sequence[SimulationTrace], servers_per_gpu: int) -> SimulationTrace:
    return SimulationTrace(
        states=sorted(state for trace in traces for state in trace.states),
        busy_s=sum(trace.busy_s for trace in traces) / servers_per_gpu,
        steps=sum(trace.steps for trace in traces),
    )


def summed(counts: Sequence[SchedulerCounts]) -> SchedulerCounts:
    """Return the counters of several schedulers, or of several runs, as those of one."""
    return SchedulerCounts(
        preemptions=sum(each.preemptions for each in counts),
        queried_tokens=sum(each.queried_tokens for each in counts),
        hit_tokens=sum(each.hit_tokens for each in counts),
        queued_s=[seconds for each in counts for seconds in each.queued_s],
        drafts=sum(each.drafts for each in counts),
        drafted_tokens=sum(each.drafted_tokens for each in counts),
        accepted_tokens=sum(each.accepted_tokens for each in counts),
    )


def _difference(begin: float | None, end: float | None) -> float:
    assert begin is not None
    assert end is not None
    return end - begin


def _statistics(name: str, values: _Seconds, counts: _Counts, percentiles: Sequence[int]) -> dict[str, float | None]:
    """Return the statistics of values that occur `counts` times each; equal to NumPy's on all occurrences."""
    order = np.argsort(values, kind="stable")
    values, cumulated = values[order], np.cumsum(counts[order])
    total = int(cumulated[-1]) if len(cumulated) else 0
    if not total:
        return {f"{each}_{name}_ms": None for each in ("mean", "median", "std", *(f"p{p}" for p in percentiles))}
    weights = counts[order] / total
    mean = float(np.sum(weights * values))  # a scalar product adds in the order of the BLAS threads
    statistics: dict[str, float | None] = {
        f"mean_{name}_ms": mean,
        f"median_{name}_ms": _weighted_percentile(values, cumulated, 50),
        f"std_{name}_ms": float(np.sqrt(np.sum(weights * (values - mean) ** 2))),
    }
    return statistics | {f"p{p}_{name}_ms": _weighted_percentile(values, cumulated, p) for p in percentiles}


def _weighted_percentile(values: _Seconds, cumulated: _Counts, percentile: float) -> float:
    """Return a percentile of sorted values with cumulated counts, linearly interpolated as `np.percentile` does."""
    place = (int(cumulated[-1]) - 1) * percentile / 100
    low = int(place)
    below, above = np.searchsorted(cumulated, [low, min(low + 1, int(cumulated[-1]) - 1)], side="right")
    return float(values[below] + (values[above] - values[below]) * (place - low))


def token_gaps(
    requests: Sequence[SimulatedRequest], received_s: _Seconds, stream_interval: int, speculative: bool
) -> tuple[_Seconds, _Counts]:
    """Return the gaps between consecutive chunks of an answer, in seconds, and how often each occurs over all requests.

    Without an interval, a gap is the time between two consecutive steps, counted once for each request that got a token
    in both, plus the gaps of requests that paused in between.
    """
    if stream_interval > 1:
        each = [np.diff(chunk_times(request, received_s, stream_interval, speculative)) for request in requests]
        gaps = np.concatenate(each) if each else np.empty(0)
        return gaps, np.ones(len(gaps), dtype=np.int64)
    changes = np.zeros(len(received_s) + 1, dtype=np.int64)
    pauses: list[float] = []
    for request in requests:
        spans = _step_spans(request.segments) if speculative else request.segments
        for place, (begin, end) in enumerate(spans):
            changes[begin + 1] += 1
            changes[end] -= 1
            if place:
                pauses.append(float(received_s[begin] - received_s[spans[place - 1][1] - 1]))
    gaps = np.concatenate([np.diff(received_s, prepend=0.0), np.array(pauses)])
    return gaps, np.concatenate([np.cumsum(changes)[:-1], np.ones(len(pauses), dtype=np.int64)])


def _step_spans(segments: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans of consecutive steps in which a sequence got tokens, as pairs (first step, last step + 1)."""
    if not segments:
        return []
    first, last = segments[0][0], segments[-1][0] + 1
    if last - first == len(segments):
        return [(first, last)]
    steps = _rows(segments)[:, 0]
    begins = [0, *(np.flatnonzero(np.diff(steps) != 1) + 1).tolist()]
    ends = [*begins[1:], len(steps)]
    return [(int(steps[begin]), int(steps[end - 1]) + 1) for begin, end in zip(begins, ends, strict=True)]


def _rows(segments: Sequence[tuple[int, int]]) -> _Counts:
    """Return segments as an array of rows, in half of the time that `np.array` takes."""
    flat = itertools.chain.from_iterable(segments)
    return np.fromiter(flat, dtype=np.int64, count=2 * len(segments)).reshape(-1, 2)


def chunk_times(request: SimulatedRequest, received_s: _Seconds, stream_interval: int, speculative: bool) -> _Seconds:
    """Return when a request's chunks arrive, in seconds.

    The first token comes at once, then a chunk after every `stream_interval` tokens, and the rest with the last token.
    """
    if speculative:
        segments = _rows(request.segments)
        steps, tokens = segments[:, 0], np.cumsum(segments[:, 1])
    else:
        ranges = [np.arange(begin, end) for begin, end in request.segments]
        steps = np.concatenate(ranges or [np.empty(0, dtype=np.int64)])
        tokens = np.arange(1, len(steps) + 1)
    if not len(steps):
        return np.empty(0)
    if stream_interval > 1:
        groups = (tokens - 1) // stream_interval
        is_sent = np.append(groups[1:] != groups[:-1], True)
        is_sent[0] = True
        steps = steps[is_sent]
    times: _Seconds = received_s[steps.astype(np.int64)]
    return times
