"""One workload against one simulated server: client, API servers and engine on a virtual clock, event by event.

The clock jumps from one event to the next. Events are a send, a deadline, a request that reaches the engine, and the
end of an engine step. With asynchronous scheduling, vLLM plans a step when the step before it begins
(`EngineCore.step_with_batch_queue`): a request that arrives during a step misses the next step and takes part in the
step after that.
"""

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
from tuner.workloads.results.requests import RequestStatus

STATE_PERIOD_S = 0.5
"""Virtual seconds between two samples of the server's state."""


class _EventKind(IntEnum):
    SEND = 0
    GIVE_UP = 1


@dataclass
class SimulationTrace:
    """What a simulation records besides the requests.

    Attributes:
        received_s: when clients received the tokens of each step, in seconds.
        states: samples of (seconds, running, waiting, share of blocks in use, preemptions).
        busy_s: seconds in which the engine ran steps.
        steps: number of steps.
    """

    received_s: array[float] = field(default_factory=lambda: array("d"))
    states: list[tuple[float, int, int, float, int]] = field(default_factory=list)
    busy_s: float = 0.0
    steps: int = 0


class BenchmarkSimulation:
    """Runs one workload to its end; the module's docstring has the model."""

    def __init__(
        self, config: ServeConfig, parameters: Parameters, scheduler: Scheduler, time: StepTime, client: SimulatedClient
    ) -> None:
        self.trace = SimulationTrace()
        self.scheduler = scheduler
        self._time = time
        self._client = client
        self._front_end = FrontEnd(config, parameters)
        self._block_size = config.block_size
        self._max_model_len = config.max_model_len
        self._events: list[tuple[float, int, _EventKind, SimulatedRequest]] = []
        self._event_count = 0
        self._requests: dict[int, SimulatedRequest] = {}
        self._sequences: dict[int, Sequence] = {}
        self._connections = 0
        self._plans_ahead = config.async_scheduling
        self._now = 0.0
        self._sampled_at = -math.inf

    def run(self, limit_s: float = math.inf, fast_forward: bool = True) -> SimulationTrace:
        """Simulate until every request has ended or `limit_s` is over; requests that still run then time out.

        Args:
            limit_s: virtual seconds.
            fast_forward: take steps that only decode without planning each one. The results are the same to the last
                bit.
        """
        for send in self._client.initial_sends():
            self._push(send.at_s, _EventKind.SEND, send.request)
            if send.request.deadline_s is not None:
                self._push(send.request.deadline_s, _EventKind.GIVE_UP, send.request)
        while self._now < limit_s:
            self._process_events()
            next_event = self._next_event_s()
            if not self.scheduler.busy:
                if next_event == math.inf:
                    break
                self._now = next_event
                continue
            if fast_forward and self.scheduler.can_fast_forward:
                self._fast_forward(min(limit_s, next_event))
                if self._next_event_s() <= self._now:
                    continue
            self._step()
        for request in [request for request in self._client.requests if request.in_flight]:
            self._end(request, RequestStatus.TIMED_OUT, self._now)
        return self.trace

    def _push(self, at_s: float, kind: _EventKind, request: SimulatedRequest) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (at_s, self._event_count, kind, request))

    def _next_event_s(self) -> float:
        """Return the time of the next event that is not the end of a step."""
        return min(self._events[0][0] if self._events else math.inf, self._front_end.next_s)

    def _process_events(self) -> None:
        while (at_s := self._next_event_s()) <= self._now:
            if self._front_end.next_s == at_s:
                self._arrive(self._front_end.pop(), at_s)
                continue
            _, _, kind, request = heapq.heappop(self._events)
            if kind is _EventKind.SEND:
                self._send(request, at_s)
            elif request.status is RequestStatus.NOT_SENT:
                self._end(request, RequestStatus.TIMED_OUT, at_s)

    def _send(self, request: SimulatedRequest, at_s: float) -> None:
        if request.status is not RequestStatus.NOT_SENT or not self._client.try_send(request, at_s):
            return
        if request.due_s is None and request.deadline_s is not None:
            self._push(request.deadline_s, _EventKind.GIVE_UP, request)
        connects = self._client.in_flight > self._connections
        self._connections += connects
        self._front_end.receive(request, at_s, connects)

    def _arrive(self, request: SimulatedRequest, at_s: float) -> None:
        """Queue a request that reaches the engine, or refuse it."""
        if not request.in_flight:
            return
        if request.prompt.tokens + request.prompt.output > self._max_model_len:
            self._end(request, RequestStatus.REFUSED, at_s)
            return
        sequence = Sequence(request.prompt, self._block_size, at_s)
        if not self.scheduler.accepts(sequence):
            self._end(request, RequestStatus.REFUSED, at_s)
            return
        self._requests[request.prompt.index] = request
        self._sequences[request.prompt.index] = sequence
        self.scheduler.add(sequence, late=self._plans_ahead and self.scheduler.busy)

    def _fast_forward(self, until_s: float) -> None:
        """Take steps that only decode, until another event can happen or a step has to be planned."""
        scheduler, front_end, received_s = self.scheduler, self._front_end, self.trace.received_s
        advance = self._time.advance
        now, steps_before = self._now, len(received_s)
        while now < until_s:
            step = scheduler.fast_forward()
            if step is None:
                break
            now += advance(step)
            received_s.append(front_end.send(now, step.decode))
            if now - self._sampled_at >= STATE_PERIOD_S:
                self._sample_state(now)
        self.trace.busy_s += now - self._now
        self.trace.steps += len(received_s) - steps_before
        self._now = now

    def _step(self) -> None:
        step = self.scheduler.plan(self._now)
        if not step.sequences:
            raise RuntimeError("the scheduler has requests and can run none of them")
        seconds = self._time.advance(step)
        self._now += seconds
        self.trace.busy_s += seconds
        self.trace.steps += 1
        begun, ended = self.scheduler.finish()
        received_s = self._front_end.send(self._now, self.scheduler.produced)
        self.trace.received_s.append(received_s)
        for sequence in begun:
            request = self._requests[sequence.index]
            request.first_s = received_s if request.first_s is None else request.first_s
        for sequence in ended:
            self._complete(self._requests[sequence.index], received_s)
        if self._now - self._sampled_at >= STATE_PERIOD_S:
            self._sample_state(self._now)

    def _complete(self, request: SimulatedRequest, received_s: float) -> None:
        """End a request with its last token; it timed out if its client gave it up before it received that token."""
        if request.deadline_s is not None and received_s > request.deadline_s:
            self._end(request, RequestStatus.TIMED_OUT, request.deadline_s)
        else:
            self._end(request, RequestStatus.COMPLETED, received_s)

    def _sample_state(self, now: float) -> None:
        self._sampled_at = now
        scheduler = self.scheduler
        usage = scheduler.pool.used / scheduler.pool.total
        state = (now, len(scheduler.running), len(scheduler.waiting), usage, scheduler.counts.preemptions)
        self.trace.states.append(state)

    def _end(self, request: SimulatedRequest, status: RequestStatus, at_s: float) -> None:
        sequence = self._sequences.pop(request.prompt.index, None)
        if sequence is not None:
            if status is not RequestStatus.COMPLETED:
                self.scheduler.abort(sequence)
            request.segments = sequence.segments
        request.status = status
        request.end_s = at_s
        following = self._client.end(request, at_s)
        if following is not None:
            self._push(following.at_s, _EventKind.SEND, following.request)
