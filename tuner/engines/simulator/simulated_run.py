"""The result of one workload, over all replicas of a deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.engines.simulator.clients.client import SimulatedRequest
from tuner.engines.simulator.replica import Replica, SimulationTrace
from tuner.engines.simulator.scheduling.scheduler import SchedulerCounts


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
    """

    requests: list[SimulatedRequest]
    received_s: NDArray[np.float64]
    trace: SimulationTrace
    counts: SchedulerCounts
    seconds: Mapping[str, float]
    flops: float
    bytes: float

    @property
    def all_ended(self) -> bool:
        """Whether every request ended, with any status, before the run did."""
        return not any(request.in_flight or request.end_s is None for request in self.requests)


def merged_run(requests: list[SimulatedRequest], replicas: Sequence[Replica], servers_per_gpu: int) -> SimulatedRun:
    """Return the result of all replicas.

    The steps of the replicas follow one another in `received_s`, and the requests' segments are moved to the steps of
    their own replica. Counters are summed, and so are busy seconds, which servers on one GPU spend together.
    """
    if len(replicas) == 1:
        only = replicas[0]
        received_s = np.array(only.trace.received_s)
        return SimulatedRun(
            requests,
            received_s,
            only.trace,
            only.scheduler.counts,
            only.time.seconds,
            only.time.flops,
            only.time.bytes,
        )
    offset = 0
    for replica in replicas:
        for request in replica.ended:
            request.segments = replica.moved(request.segments, offset)
        offset += len(replica.trace.received_s)
    times = [replica.time for replica in replicas]
    causes = dict.fromkeys(cause for time in times for cause in time.seconds)
    return SimulatedRun(
        requests=requests,
        received_s=np.concatenate([np.array(replica.trace.received_s) for replica in replicas]),
        trace=_merged_trace([replica.trace for replica in replicas], servers_per_gpu),
        counts=_summed([replica.scheduler.counts for replica in replicas]),
        seconds={cause: sum(time.seconds.get(cause, 0.0) for time in times) for cause in causes},
        flops=sum(time.flops for time in times),
        bytes=sum(time.bytes for time in times),
    )


def _merged_trace(traces: Sequence[SimulationTrace], servers_per_gpu: int) -> SimulationTrace:
    return SimulationTrace(
        states=sorted(state for trace in traces for state in trace.states),
        busy_s=sum(trace.busy_s for trace in traces) / servers_per_gpu,
        steps=sum(trace.steps for trace in traces),
    )


def _summed(counts: Sequence[SchedulerCounts]) -> SchedulerCounts:
    return SchedulerCounts(
        preemptions=sum(each.preemptions for each in counts),
        queried_tokens=sum(each.queried_tokens for each in counts),
        hit_tokens=sum(each.hit_tokens for each in counts),
        queued_s=[seconds for each in counts for seconds in each.queued_s],
        drafts=sum(each.drafts for each in counts),
        drafted_tokens=sum(each.drafted_tokens for each in counts),
        accepted_tokens=sum(each.accepted_tokens for each in counts),
    )
