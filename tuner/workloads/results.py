"""Records of requests, their SLOs, and the statistics of their latencies.

Every offered request counts. A request that failed is part of `offered`, has no latency, and misses its SLO.
Percentiles interpolate linearly between order statistics, as NumPy's default and `vllm bench serve` do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

import numpy as np

from records.metrics import PERCENTILES


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
    """The run, or its session, ended before it was sent."""


SESSION_ENDED = "its session ended: an earlier turn did not complete"
"""The reason why a request of a later turn was not sent."""


@dataclass(frozen=True)
class RequestRecord:
    """One offered request. Times are in seconds from the start of the run; None for events that did not happen.

    Attributes:
        index: the request's number.
        name: its class.
        status: how it ended.
        planned_input, planned_output: tokens of prompt and answer that the workload plans.
        due_s: the scheduled time; None in a closed loop. A later turn of a session is due at the end of the answers
            before it plus its pause; None if that time never came.
        sent_s: when it was sent.
        first_token_s: when its first token arrived.
        end_s: when it ended.
        input_tokens, output_tokens: tokens of prompt and answer that the server counted.
        gaps_s: times between consecutive chunks of the answer, in order.
        error: the reason why it did not complete.
        session: number of its session; None: it stands alone.
        turn: number of its turn in the session, from 0.
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
    session: int | None = None
    turn: int = 0

    @property
    def completed(self) -> bool:
        """Whether the whole answer arrived."""
        return self.status is RequestStatus.COMPLETED

    @property
    def intended_s(self) -> float | None:
        """When the request should start: the scheduled time, or the time of sending in a closed loop."""
        return self.sent_s if self.due_s is None else self.due_s

    def latencies_ms(self, since_sent: bool = False) -> dict[str, float]:
        """Return `ttft`, `tpot` and `e2el` in ms, each if it is known.

        TTFT and E2EL count from the intended start. This corrects for coordinated omission (Tene): a client that sends
        late would otherwise hide the wait, as latencies `since_sent` do.
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


_EDGE_SHARE = 0.1
"""Share of an open-loop run that is cut off at the beginning and again at the end."""

LEAST_STABLE_REQUESTS = 20
"""Requests that a stable middle needs; with fewer, the whole run counts."""


def stable_middle(records: Iterable[RequestRecord], users: int | None) -> Window | None:
    """Return the stable middle of a run; None if the run is too short for one. `users` is None for an open loop.

    In a closed loop, it lasts from the time at which every user has a request in flight until the last request is sent.
    In an open loop, it leaves out the first and the last tenth of the time in which requests are due.
    """
    offered = list(records)
    starts = sorted(record.intended_s for record in offered if record.intended_s is not None)
    if not starts:
        return None
    if users is None:
        edge = _EDGE_SHARE * (starts[-1] - starts[0])
        window = Window(starts[0] + edge, starts[-1] - edge)
    else:
        window = Window(starts[min(users, len(starts)) - 1], starts[-1])
    return window if sum(window.holds(record) for record in offered) >= LEAST_STABLE_REQUESTS else None


def failures_line(records: Sequence[RequestRecord]) -> str | None:
    """Return how many requests did not complete, by status, and the first reason; None if all completed."""
    failed = [record for record in records if not record.completed]
    if not failed:
        return None
    counts = Counter(str(record.status) for record in failed)
    first = next((record for record in failed if record.error is not None), failed[0])
    listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"{len(failed)} failed: {listed}; the first: {' '.join((first.error or first.status).split())}"


LATENCY_NAMES = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class RequestSlo:
    """The bounds that one request must meet, counted from its intended start.

    An answer in a single chunk has no gaps and meets any ITL bound; an answer of one token has no TPOT and meets any
    TPOT bound. Any other missing latency misses its bound.

    Attributes:
        bounds_ms: upper bounds in ms by latency (`ttft`, `tpot`, `itl`, `e2el`).
        itl_percentile: the percentile over the request's own gaps that `itl` bounds.
    """

    bounds_ms: Mapping[str, float] = field(default_factory=dict)
    itl_percentile: int = 95

    def met(self, record: RequestRecord) -> bool:
        """Return whether the request completed and is below every bound."""
        if not record.completed:
            return False
        latencies = record.latencies_ms()
        if "itl" in self.bounds_ms:
            gaps = record.gaps_s
            latencies["itl"] = 1000.0 * float(np.percentile(gaps, self.itl_percentile)) if gaps else 0.0
        if record.output_tokens == 1:
            latencies["tpot"] = 0.0
        return all(name in latencies and latencies[name] < bound for name, bound in self.bounds_ms.items())


def sum_of(values: Iterable[int | None]) -> int | None:
    """Return the sum of counts; None if one of them is unknown."""
    counts = list(values)
    return None if None in counts else sum(count for count in counts if count is not None)


def latency_statistics(
    records: Iterable[RequestRecord], window: Window | None, *, since_sent: bool = False
) -> dict[str, float | None]:
    """Return mean and percentiles in ms of each latency, and of the gaps, over requests of the stable middle.

    They are None without completed requests, and named as in `records.metrics` (`p99_ttft_ms`). The mean is that of
    completed requests. In a percentile, a request that failed counts, too (`_failed_latencies`): a server that drops
    its slowest requests would otherwise have the lower latency.
    """
    stable = [record for record in records if window is None or window.holds(record)]
    completed = [record for record in stable if record.completed]
    found = [record.latencies_ms(since_sent) for record in completed]
    values = {name: np.array([each[name] for each in found if name in each]) for name in LATENCY_NAMES}
    values["itl"] = 1000.0 * np.fromiter(chain.from_iterable(record.gaps_s for record in completed), np.float64)
    failed = [record for record in stable if not record.completed]
    result: dict[str, float | None] = {}
    for name, latencies in values.items():
        result[f"mean_{name}_ms"] = float(np.mean(latencies)) if len(latencies) else None
        every = latencies
        if failed and len(latencies):
            every = np.append(latencies, [*_failed_latencies(name, failed, float(latencies.max()), since_sent)])
        at = np.percentile(every, PERCENTILES) if len(every) else None
        for place, percentile in enumerate(PERCENTILES):
            result[f"p{percentile}_{name}_ms"] = None if at is None else float(at[place])
    return result


def _failed_latencies(name: str, failed: Sequence[RequestRecord], slowest: float, since_sent: bool) -> Iterator[float]:
    """Yield a lower bound of a latency of each failed request: its TTFT if it is known, else at least the slowest one.

    It is also at least what the request waited. Gaps between tokens are no property of a request, and have none.
    """
    for record in failed if name != "itl" else ():
        begin = record.sent_s if since_sent else record.intended_s
        known = record.latencies_ms(since_sent).get(name)
        waited = 0.0 if name == "tpot" or begin is None or record.end_s is None else 1000.0 * (record.end_s - begin)
        yield max(slowest, waited) if known is None else known
