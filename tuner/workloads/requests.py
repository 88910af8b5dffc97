"""What came of each offered request: one record a request, whatever happened to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class RequestStatus(StrEnum):
    """How a request ended. Everything but `completed` counts against its class."""

    COMPLETED = "completed"
    REFUSED = "refused"
    """The server answered with an HTTP status other than 200."""
    TIMED_OUT = "timed_out"
    """Its deadline passed before its last token."""
    CONNECTION_LOST = "connection_lost"
    """The connection could not be made, was reset, or closed before the stream's end."""
    MALFORMED = "malformed"
    """The stream held something that is no event of the API."""
    INCOMPLETE = "incomplete"
    """The stream ended in good order with fewer tokens than were asked for."""
    NOT_SENT = "not_sent"
    """The run ended before it was sent."""


@dataclass(frozen=True)
class RequestRecord:
    """One offered request. Times are seconds from the start of the load; what did not happen is None.

    `due_s` is the scheduled time, None in a closed loop. `gaps_s` are the times between two consecutive chunks of the
    answer, in order. `planned_input` and `planned_output` are the tokens that the load asked for, known of every
    request; `input_tokens` and `output_tokens` are what the server counted.
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
        """True if the answer came whole."""
        return self.status is RequestStatus.COMPLETED

    @property
    def wanted_s(self) -> float | None:
        """When the user wanted it: the scheduled time, in a closed loop the time of sending."""
        return self.sent_s if self.due_s is None else self.due_s

    @property
    def lateness_s(self) -> float | None:
        """How much later than scheduled it was sent; None in a closed loop and for one that was not sent."""
        return None if self.due_s is None or self.sent_s is None else self.sent_s - self.due_s

    def latencies_ms(self, since_sent: bool = False) -> dict[str, float]:
        """Return `ttft`, `tpot` and `e2el` in ms, those that there are; see `storage.metrics` for what they count.

        Args:
            since_sent: count from sending, as a client does that waits its turn, and not from when it was due
                (Tene's "coordinated omission").
        """
        begin = self.sent_s if since_sent else self.wanted_s
        if begin is None or self.first_token_s is None:
            return {}
        found = {"ttft": 1000.0 * (self.first_token_s - begin)}
        if self.completed and self.end_s is not None:
            found["e2el"] = 1000.0 * (self.end_s - begin)
            if self.output_tokens is not None and self.output_tokens > 1:
                found["tpot"] = 1000.0 * (self.end_s - self.first_token_s) / (self.output_tokens - 1)
        return found


@dataclass(frozen=True)
class Window:
    """The part of a run that percentiles are taken over, in seconds from its start; requests wanted in it count."""

    begin_s: float
    end_s: float

    def holds(self, record: RequestRecord) -> bool:
        """Return whether the request was wanted in the window."""
        wanted = record.wanted_s
        return wanted is not None and self.begin_s <= wanted <= self.end_s


EDGE_SHARE = 0.1
"""Share of an open-loop run at its beginning, and at its end, that is not its stable middle."""

MIN_STABLE_REQUESTS = 20
"""Requests that a stable middle must hold; with fewer, the whole run counts."""


def stable_middle(records: Iterable[RequestRecord], users: int | None) -> Window | None:
    """Return the stable middle of a run; None where the run is too short to have one.

    Closed loop of `users`: from when every user has a request running until the last one is sent, because then users
    run out of work. Open loop (None): without the first and the last tenth of the time in which requests were due.
    """
    known = list(records)
    wanted = sorted(record.wanted_s for record in known if record.wanted_s is not None)
    if not wanted:
        return None
    if users is None:
        edge = EDGE_SHARE * (wanted[-1] - wanted[0])
        window = Window(wanted[0] + edge, wanted[-1] - edge)
    else:
        window = Window(wanted[min(users, len(wanted)) - 1], wanted[-1])
    return window if sum(window.holds(record) for record in known) >= MIN_STABLE_REQUESTS else None
