"""One workload against the replicas of one deployment: client, API servers and engines on a virtual clock.

The clock jumps from one event to the next. Events are a send, a deadline, a request that reaches an engine, and the
end of an engine step. With asynchronous scheduling, vLLM plans a step when the step before it begins
(`EngineCore.step_with_batch_queue`): a request that arrives during a step misses the next step and takes part in the
step after that.

Each request goes to the replica with the fewest requests in work, the first of them if several have as few. vLLM's own
balancer for data parallelism (`DPLBAsyncMPClient`) and routers for several servers do so. The replica that is behind
the others in time takes the next step. Replicas on one GPU share it: `StepTime.sharing` is the number of those with
work when a step begins.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from enum import IntEnum

from tuner.engines.simulator.clients.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.replica import Replica
from tuner.workloads.results.requests import RequestStatus


class _EventKind(IntEnum):
    SEND = 0
    GIVE_UP = 1


class BenchmarkSimulation:
    """Runs one workload to its end; the module's docstring has the model."""

    def __init__(self, replicas: Sequence[Replica], client: SimulatedClient) -> None:
        self._replicas = replicas
        self._front_ends = [replica.front_end for replica in replicas]
        self._client = client
        self._events: list[tuple[float, int, _EventKind, SimulatedRequest]] = []
        self._event_count = 0
        self._replica_of: dict[int, Replica] = {}

    def run(self, limit_s: float = math.inf, fast_forward: bool = True) -> None:
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
        now = 0.0
        while now < limit_s:
            self._process_events(now)
            replica = self._earliest()
            if replica is not None and replica.now <= now:
                self._advance(replica, limit_s, fast_forward)
                replica = self._earliest()
            now = self._next_event_s() if replica is None else replica.now
            if now == math.inf:
                break
        for request in [request for request in self._client.requests if request.in_flight]:
            self._end(request, RequestStatus.TIMED_OUT, now)

    def _earliest(self) -> Replica | None:
        """Return the replica with work whose next step begins first."""
        found = None
        for replica in self._replicas:
            if replica.scheduler.busy and (found is None or replica.now < found.now):
                found = replica
        return found

    def _advance(self, replica: Replica, limit_s: float, fast_forward: bool) -> None:
        """Take the next step of a replica, or several until another replica or an event is due."""
        others = math.inf
        if len(self._replicas) > 1:
            busy = [each for each in self._replicas if each.scheduler.busy]
            others = min((each.now for each in busy if each is not replica), default=math.inf)
            replica.time.sharing = sum(each.gpu == replica.gpu for each in busy)
        if fast_forward and replica.scheduler.can_fast_forward:
            replica.fast_forward(min(limit_s, self._next_event_s(), others))
            if self._next_event_s() <= replica.now or others < replica.now:
                return
        ended, received_s = replica.step()
        for request in ended:
            self._complete(request, received_s)
        replica.sample_if_due()

    def _push(self, at_s: float, kind: _EventKind, request: SimulatedRequest) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (at_s, self._event_count, kind, request))

    def _next_event_s(self) -> float:
        """Return the time of the next event that is not the end of a step."""
        next_s = self._events[0][0] if self._events else math.inf
        for front_end in self._front_ends:
            if front_end.next_s < next_s:
                next_s = front_end.next_s
        return next_s

    def _process_events(self, until_s: float) -> None:
        """Process all events up to `until_s`, or up to the one with which an idle replica gets work."""
        while (at_s := self._next_event_s()) <= until_s:
            for replica in self._replicas:
                if replica.front_end.next_s == at_s:
                    is_idle = not replica.scheduler.busy
                    self._arrive(replica, replica.front_end.pop(), at_s)
                    until_s = at_s if is_idle and replica.scheduler.busy else until_s
                    break
            else:
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
        replica = self._replicas[0]
        if len(self._replicas) > 1:
            replica = min(self._replicas, key=lambda each: each.outstanding)
        self._replica_of[request.prompt.index] = replica
        replica.receive(request, at_s)

    def _arrive(self, replica: Replica, request: SimulatedRequest, at_s: float) -> None:
        """Queue a request that reaches the engine, or refuse it."""
        if request.in_flight and not replica.queue(request, at_s, copies_chains=len(self._replicas) > 1):
            self._end(request, RequestStatus.REFUSED, at_s)

    def _complete(self, request: SimulatedRequest, received_s: float) -> None:
        """End a request with its last token; it timed out if its client gave it up before it received that token."""
        if request.deadline_s is not None and received_s > request.deadline_s:
            self._end(request, RequestStatus.TIMED_OUT, request.deadline_s)
        else:
            self._end(request, RequestStatus.COMPLETED, received_s)

    def _end(self, request: SimulatedRequest, status: RequestStatus, at_s: float) -> None:
        replica = self._replica_of.get(request.prompt.index)
        if replica is not None:
            replica.release(request, status is RequestStatus.COMPLETED)
        request.status = status
        request.end_s = at_s
        following = self._client.end(request, at_s)
        if following is not None:
            self._push(following.at_s, _EventKind.SEND, following.request)
