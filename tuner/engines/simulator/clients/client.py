"""Who sends requests to the simulated server, and when: users in a closed loop, or a schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.engines.simulator.scheduling.sequence import Prompt
from tuner.workloads.requests import RequestStatus


class SimulatedRequest:
    """A request as its client sees it. Times are seconds from the start of the load; None is what did not happen.

    `due_s` is None in a closed loop; `deadline_s` when it is given up; `segments` and `speculative` say at which steps
    its tokens came, as in `Sequence`.
    """

    __slots__ = (
        *("deadline_s", "due_s", "end_s", "first_s", "in_flight", "name", "prompt", "segments", "sent_s", "status"),
    )

    def __init__(self, prompt: Prompt, name: str, due_s: float | None, deadline_s: float | None) -> None:
        self.prompt = prompt
        self.name = name
        self.due_s = due_s
        self.deadline_s = deadline_s
        self.sent_s: float | None = None
        self.first_s: float | None = None
        self.end_s: float | None = None
        self.status = RequestStatus.NOT_SENT
        self.in_flight = False
        self.segments: list[tuple[int, int]] = []


@dataclass(frozen=True)
class ScheduledSend:
    """A request that its client sends at a time."""

    at_s: float
    job: SimulatedRequest


class SimulatedClient:
    """Sends jobs: `users` at a time, each its next as soon as it is free; or at their times, `max_in_flight` at most.

    `pause_s` is what a client needs between the end of a request and sending the next; `in_flight` is how many requests
    it waits for.
    """

    def __init__(
        self,
        jobs: Sequence[SimulatedRequest],
        users: int | None,
        max_in_flight: int | None,
        timeout_s: float | None,
        pause_s: float,
    ) -> None:
        self.jobs = jobs
        self._users = users
        self._most = max_in_flight
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._ready: deque[SimulatedRequest] = deque(jobs) if users else deque()
        self.in_flight = 0

    def start(self) -> Iterator[ScheduledSend]:
        """Return what is sent, or due, without anything having ended."""
        if self._users:
            for _ in range(min(self._users, len(self._ready))):
                yield ScheduledSend(0.0, self._ready.popleft())
            return
        for job in self.jobs:
            yield ScheduledSend(job.due_s or 0.0, job)

    def take(self, job: SimulatedRequest, now: float) -> bool:
        """Note that a job is due; return whether it is sent now, or waits for a place in flight."""
        if self._most is not None and self.in_flight >= self._most:
            self._ready.append(job)
            return False
        self.in_flight += 1
        job.in_flight = True
        job.sent_s = now
        if self._users and self._timeout_s is not None:
            job.deadline_s = now + self._timeout_s
        return True

    def ended(self, job: SimulatedRequest, now: float) -> ScheduledSend | None:
        """Note that a job has ended, however; return what is sent in its place."""
        if not job.in_flight:
            return None
        job.in_flight = False
        self.in_flight -= 1
        while self._ready:
            following = self._ready.popleft()
            if following.status is RequestStatus.NOT_SENT:
                return ScheduledSend(now + self._pause_s, following)
        return None
