"""Sends requests to the simulated server, as users in a closed loop or at scheduled times."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.engines.simulator.scheduling.sequence import Prompt
from tuner.workloads.results.requests import RequestStatus


class SimulatedRequest:
    """A request in the view of its client. Times are in seconds from the start of the run; None before the event.

    Attributes:
        prompt: the lengths of prompt and answer.
        name: the request class.
        due_s: the scheduled time; None in a closed loop.
        deadline_s: when the client gives it up; None for never.
        sent_s: when it is sent.
        first_s: when the client receives its first token.
        end_s: when it ends.
        status: how it ended; `NOT_SENT` until it ends.
        in_flight: whether it is sent and has not ended.
        segments: the steps at which it got tokens, as in `Sequence`.
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
    """A request and the time in seconds at which its client sends it."""

    at_s: float
    request: SimulatedRequest


class SimulatedClient:
    """Sends requests in a closed loop of `users`, or at their scheduled times with at most `max_in_flight` at once.

    Attributes:
        requests: all requests.
        in_flight: number of requests that are sent and have not ended.
    """

    def __init__(
        self,
        requests: Sequence[SimulatedRequest],
        users: int | None,
        max_in_flight: int | None,
        timeout_s: float | None,
        pause_s: float,
    ) -> None:
        """Set up a client.

        Args:
            requests: all requests, in the order in which they are sent.
            users: users of a closed loop; None to send at the scheduled times.
            max_in_flight: requests in flight at most; None for no limit.
            timeout_s: seconds after which a request of a closed loop is given up; None for never.
            pause_s: seconds from the end of a request until the client sends the next one in its place.
        """
        self.requests = requests
        self._users = users
        self._max_in_flight = max_in_flight
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._ready: deque[SimulatedRequest] = deque(requests) if users else deque()
        self.in_flight = 0

    def initial_sends(self) -> Iterator[ScheduledSend]:
        """Yield the first request of each user, or every request at its scheduled time."""
        if self._users:
            for _ in range(min(self._users, len(self._ready))):
                yield ScheduledSend(0.0, self._ready.popleft())
            return
        for request in self.requests:
            yield ScheduledSend(request.due_s or 0.0, request)

    def try_send(self, request: SimulatedRequest, now: float) -> bool:
        """Send a request that is due; return False if it has to wait because `max_in_flight` are in flight."""
        if self._max_in_flight is not None and self.in_flight >= self._max_in_flight:
            self._ready.append(request)
            return False
        self.in_flight += 1
        request.in_flight = True
        request.sent_s = now
        if self._users and self._timeout_s is not None:
            request.deadline_s = now + self._timeout_s
        return True

    def end(self, request: SimulatedRequest, now: float) -> ScheduledSend | None:
        """Count a request as ended, with any status; return the request that is sent in its place."""
        if not request.in_flight:
            return None
        request.in_flight = False
        self.in_flight -= 1
        while self._ready:
            following = self._ready.popleft()
            if following.status is RequestStatus.NOT_SENT:
                return ScheduledSend(now + self._pause_s, following)
        return None
