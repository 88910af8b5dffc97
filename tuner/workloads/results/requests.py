"""Records of requests: one for each offered request, whatever its outcome, and the stable middle of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class RequestStatus(StrEnum):
    """How a request ended. A request with any status but `completed` misses its SLO."""

    COMPLETED = "completed"
    REFUSED = "refused"
    """The server answered with an HTTP status other than 200."""
    TIMED_OUT = "timed_out"
    """The deadline passed before the last token."""
    CONNECTION_LOST = "connection_lost"
    """The connection failed, was reset, or closed before the stream ended."""
    MALFORMED = "malformed"
    """The stream has something that is not an event of the API."""
    INCOMPLETE = "incomplete"
    """The stream ended properly with fewer tokens than requested."""
    NOT_SENT = "not_sent"
    """The run ended before it was sent."""


@dataclass(frozen=True)
class RequestRecord:
    """One offered request. Times are in seconds from the start of the run; None for events that did not happen.

    Attributes:
        index: the request's number.
        name: its class.
        status: how it ended.
        planned_input, planned_output: tokens of prompt and answer that the workload plans.
        due_s: the scheduled time; None in a closed loop.
        sent_s: when it was sent.
        first_token_s: when its first token arrived.
        end_s: when it ended.
        input_tokens, output_tokens: tokens of prompt and answer that the server counted.
        gaps_s: times between consecutive chunks of the answer, in order.
        error: the reason why it did not complete.
    """

    index: int
    name: str
    status: RequestStatus
    planned_input: int | None = None
    planned_output: int | None = None
    due_s: float | None = None
    sent_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    gaps_s: tuple[float, ...] = ()
    error: str | None = None

    @property
    def completed(self) -> bool:
        """Whether the whole answer arrived."""
        return self.status is RequestStatus.COMPLETED

    @property
    def intended_s(self) -> float | None:
        """When the request should start: the scheduled time, or the time of sending in a closed loop."""
        return self.sent_s if self.due_s is None else self.due_s

    @property
    def lateness_s(self) -> float | None:
        """Seconds from the scheduled time to sending; None in a closed loop and for a request that was not sent."""
        return None if self.due_s is None or self.sent_s is None else self.sent_s - self.due_s

    def latencies_ms(self, since_sent: bool = False) -> dict[str, float]:
        """Return `ttft`, `tpot` and `e2el` in ms, each if it is known.

        TTFT and E2EL count from the intended start. This corrects for coordinated omission (Tene): a client that sends
        late would otherwise hide the wait.

        Args:
            since_sent: count from sending instead, as an uncorrected client does.
        """
        begin = self.sent_s if since_sent else self.intended_s
        if begin is None or self.first_token_s is None:
            return {}
        latencies = {"ttft": 1000.0 * (self.first_token_s - begin)}
        if self.completed and self.end_s is not None:
            latencies["e2el"] = 1000.0 * (self.end_s - begin)
            if self.output_tokens is not None and self.output_tokens > 1:
                latencies["tpot"] = 1000.0 * (self.end_s - self.first_token_s) / (self.output_tokens - 1)
        return latencies


@dataclass(frozen=True)
class Window:
    """The part of a run whose requests count for percentiles, in seconds from the start of the run."""

    begin_s: float
    end_s: float

    def holds(self, record: RequestRecord) -> bool:
        """Return whether the request's intended start lies in the window."""
        start = record.intended_s
        return start is not None and self.begin_s <= start <= self.end_s


EDGE_SHARE = 0.1
"""Share of an open-loop run that is cut off at the beginning and again at the end."""

MIN_STABLE_REQUESTS = 20
"""Requests that a stable middle needs; with fewer, the whole run counts."""


def stable_middle(records: Iterable[RequestRecord], users: int | None) -> Window | None:
    """Return the stable middle of a run; None if the run is too short for one.

    In a closed loop, it lasts from the time at which every user has a request in flight until the last request is sent.
    In an open loop, it leaves out the first and the last tenth of the time in which requests are due.

    Args:
        records: one for each offered request.
        users: users of a closed loop; None for an open loop.
    """
    offered = list(records)
    starts = sorted(record.intended_s for record in offered if record.intended_s is not None)
    if not starts:
        return None
    if users is None:
        edge = EDGE_SHARE * (starts[-1] - starts[0])
        window = Window(starts[0] + edge, starts[-1] - edge)
    else:
        window = Window(starts[min(users, len(starts)) - 1], starts[-1])
    return window if sum(window.holds(record) for record in offered) >= MIN_STABLE_REQUESTS else None


def failures_line(records: Sequence[RequestRecord]) -> str | None:
    """Return how many requests did not complete, by status, and the first reason; None if all completed."""
    failed = [record for record in records if not record.completed]
    if not failed:
        return None
    counts = Counter(str(record.status) for record in failed)
    first = next((record for record in failed if record.error is not None), failed[0])
    listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"{len(failed)} failed: {listed}; the first: {' '.join((first.error or first.status).split())}"
