"""One load against one simulated server: clients, front end and engine on a virtual clock, from event to event."""

from __future__ import annotations

import heapq
import math
from array import array
from dataclasses import dataclass, field
from enum import IntEnum

from tuner.engines.simulator.clients.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.scheduling.scheduler import Scheduler
from tuner.engines.simulator.scheduling.sequence import Sequence
from tuner.engines.simulator.timing.front_end import FrontEnd
from tuner.engines.simulator.timing.step_time import StepTime
from tuner.workloads.requests import RequestStatus

STATE_PERIOD_S = 0.5
"""Seconds between two looks at the server's state."""


class _Kind(IntEnum):
    SEND = 0
    GIVE_UP = 1


@dataclass
class SimulationTrace:
    """What is kept of a run besides the jobs: when clients saw each step's tokens, and the server's state over time.

    `seen_s` has one entry a step. `states` are (seconds, running, waiting, share of blocks in use, preemptions).
    """

    seen_s: array[float] = field(default_factory=lambda: array("d"))
    states: list[tuple[float, int, int, float, int]] = field(default_factory=list)
    busy_s: float = 0.0
    steps: int = 0


class BenchmarkSimulation:
    """Runs one load to its end.

    With asynchronous scheduling vLLM plans a step when the one before begins (`EngineCore.step_with_batch_queue`): what
    comes while a step runs misses the next one, and takes part in the one after.
    """

    def __init__(
        self, config: ServeConfig, known: Parameters, scheduler: Scheduler, time: StepTime, client: SimulatedClient
    ) -> None:
        self.trace = SimulationTrace()
        self.scheduler = scheduler
        self._time = time
        self._client = client
        self._front = FrontEnd(config, known)
        self._block_size = config.block_size
        self._longest = config.max_model_len
        self._events: list[tuple[float, int, _Kind, SimulatedRequest]] = []
        self._count = 0
        self._jobs: dict[int, SimulatedRequest] = {}
        self._sequences: dict[int, Sequence] = {}
        self._connections = 0
        self._planned_ahead = config.async_scheduling
        self._now = 0.0
        self._sampled = -math.inf

    def run(self, limit_s: float = math.inf, together: bool = True) -> SimulationTrace:
        """Simulate until every job has ended, or `limit_s` is over: what then runs has timed out.

        Args:
            limit_s: virtual seconds.
            together: advance steps of decodes alone together; without it each is planned like any other. The results
                are the same to the last bit.
        """
        for sending in self._client.start():
            self._push(sending.at_s, _Kind.SEND, sending.job)
            if sending.job.deadline_s is not None:
                self._push(sending.job.deadline_s, _Kind.GIVE_UP, sending.job)
        while self._now < limit_s:
            self._process_events()
            upcoming = self._upcoming()
            if not self.scheduler.busy:
                if upcoming == math.inf:
                    break
                self._now = upcoming
                continue
            if together and self.scheduler.steady:
                self._decode_until(min(limit_s, upcoming))
                if self._upcoming() <= self._now:
                    continue
            self._step()
        for job in [job for job in self._client.jobs if job.in_flight]:
            self._end(job, RequestStatus.TIMED_OUT, self._now)
        return self.trace

    def _push(self, at: float, kind: _Kind, job: SimulatedRequest) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, kind, job))

    def _upcoming(self) -> float:
        """Return when the next thing happens that is not a step."""
        return min(self._events[0][0] if self._events else math.inf, self._front.next_s)

    def _process_events(self) -> None:
        while (at := self._upcoming()) <= self._now:
            if self._front.next_s == at:
                self._arrive(self._front.pop(), at)
                continue
            _, _, kind, job = heapq.heappop(self._events)
            if kind is _Kind.SEND:
                self._send(job, at)
            elif job.status is RequestStatus.NOT_SENT:
                self._end(job, RequestStatus.TIMED_OUT, at)

    def _send(self, job: SimulatedRequest, at: float) -> None:
        if job.status is not RequestStatus.NOT_SENT or not self._client.take(job, at):
            return
        if job.due_s is None and job.deadline_s is not None:
            self._push(job.deadline_s, _Kind.GIVE_UP, job)
        connects = self._client.in_flight > self._connections
        self._connections += connects
        self._front.receive(job, at, connects)

    def _arrive(self, job: SimulatedRequest, at: float) -> None:
        if not job.in_flight:
            return
        if job.prompt.tokens + job.prompt.output > self._longest:
            self._end(job, RequestStatus.REFUSED, at)
            return
        sequence = Sequence(job.prompt, self._block_size, at)
        if not self.scheduler.admits(sequence):
            self._end(job, RequestStatus.REFUSED, at)
            return
        self._jobs[job.prompt.index] = job
        self._sequences[job.prompt.index] = sequence
        self.scheduler.add(sequence, late=self._planned_ahead and self.scheduler.busy)

    def _decode_until(self, until: float) -> None:
        """Take steps of decodes alone, one after another, while nothing else can happen."""
        scheduler, front, seen, take = self.scheduler, self._front, self.trace.seen_s, self._time.take
        now, begun = self._now, len(self.trace.seen_s)
        while now < until:
            step = scheduler.decode_alone()
            if step is None:
                break
            now += take(step)
            seen.append(front.send(now, step.decode))
            if now - self._sampled >= STATE_PERIOD_S:
                self._sample(now)
        self.trace.busy_s += now - self._now
        self.trace.steps += len(self.trace.seen_s) - begun
        self._now = now

    def _step(self) -> None:
        step = self.scheduler.plan(self._now)
        if not step.sequences:
            raise RuntimeError("the scheduler has requests and can run none of them")
        seconds = self._time.take(step)
        self._now += seconds
        self.trace.busy_s += seconds
        self.trace.steps += 1
        begun, ended = self.scheduler.finish()
        seen = self._front.send(self._now, self.scheduler.produced)
        self.trace.seen_s.append(seen)
        for sequence in begun:
            job = self._jobs[sequence.index]
            job.first_s = seen if job.first_s is None else job.first_s
        for sequence in ended:
            self._finish(self._jobs[sequence.index], seen)
        if self._now - self._sampled >= STATE_PERIOD_S:
            self._sample(self._now)

    def _finish(self, job: SimulatedRequest, seen: float) -> None:
        """End a request that has its last token, or had been given up before its client saw that."""
        if job.deadline_s is not None and seen > job.deadline_s:
            self._end(job, RequestStatus.TIMED_OUT, job.deadline_s)
        else:
            self._end(job, RequestStatus.COMPLETED, seen)

    def _sample(self, now: float) -> None:
        self._sampled = now
        scheduler = self.scheduler
        usage = scheduler.pool.used / scheduler.pool.total
        state = (now, len(scheduler.running), len(scheduler.waiting), usage, scheduler.counts.preemptions)
        self.trace.states.append(state)

    def _end(self, job: SimulatedRequest, status: RequestStatus, at: float) -> None:
        sequence = self._sequences.pop(job.prompt.index, None)
        if sequence is not None:
            if status is not RequestStatus.COMPLETED:
                self.scheduler.abort(sequence)
            job.segments = sequence.segments
        job.status = status
        job.end_s = at
        following = self._client.ended(job, at)
        if following is not None:
            self._push(following.at_s, _Kind.SEND, following.job)
