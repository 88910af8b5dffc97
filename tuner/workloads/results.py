"""Records of requests, and their statistics: counts, latencies and goodput, over all requests and for each class.

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
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class RequestStatistics:
    """The statistics of a group of requests.

    Attributes:
        offered: number of requests.
        completed: number of completed requests.
        good: number of requests that meet the SLO of their class; None if no class has an SLO.
        good_input_tokens: prompt tokens of these requests; None without SLOs, or where a request lacks them.
        good_output_tokens: the same for the answers.
        sessions: number of sessions.
        good_sessions: number of sessions all of whose requests are good; None without SLOs.
        duration_s: seconds from the start of the run to the end of its last request.
        latencies: mean and percentiles in ms, named as in `records.metrics` (`p99_ttft_ms`), of the requests of the
            stable middle, counted from the intended start; None where none completed.
        client_latencies: the same, counted from sending.
    """

    offered: int
    completed: int
    good: int | None
    duration_s: float | None
    good_input_tokens: int | None = None
    good_output_tokens: int | None = None
    sessions: int = 0
    good_sessions: int | None = None
    latencies: Mapping[str, float | None] = field(default_factory=dict)
    client_latencies: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def success_rate(self) -> float | None:
        """Completed requests as a share of offered ones; None if none is offered."""
        return self.completed / self.offered if self.offered else None

    @property
    def goodput_share(self) -> float | None:
        """Requests that meet their SLO, as a share of offered ones; None without SLOs or requests."""
        return None if self.good is None or not self.offered else self.good / self.offered

    @property
    def session_goodput_share(self) -> float | None:
        """Sessions all of whose requests meet their SLO, as a share of offered ones; None without SLOs or sessions."""
        return None if self.good_sessions is None or not self.sessions else self.good_sessions / self.sessions

    @property
    def goodput(self) -> float | None:
        """Requests per second that meet their SLO; None without SLOs or duration."""
        return None if self.good is None or not self.duration_s else self.good / self.duration_s


@dataclass(frozen=True)
class RunSummary:
    """The statistics of a run over all requests and by class; `window` is its stable middle, None for the whole run."""

    overall: RequestStatistics
    classes: Mapping[str, RequestStatistics]
    window: Window | None


def summarise_run(
    records: Sequence[RequestRecord],
    names: Iterable[str],
    slos: Mapping[str, RequestSlo] | None = None,
    users: int | None = None,
) -> RunSummary:
    """Return the statistics of a run.

    Args:
        records: one for each offered request.
        names: the classes, including those without requests.
        slos: the SLO of each class; in a class without an SLO, every completed request is good.
        users: users of a closed loop; None for an open loop.
    """
    window = stable_middle(records, users)
    ends = [record.end_s for record in records if record.end_s is not None]
    duration = max(ends) if ends else None

    def statistics(group: Sequence[RequestRecord]) -> RequestStatistics:
        good = None if not slos else [each for each in group if slos.get(each.name, RequestSlo()).met(each)]
        sessions, kept = (
            Counter(each.session for each in part or () if each.session is not None) for part in (group, good)
        )
        stable = [record for record in group if window is None or window.holds(record)]
        gaps_s = (record.gaps_s for record in stable if record.completed)
        gaps_ms = 1000.0 * np.fromiter(chain.from_iterable(gaps_s), np.float64)
        return RequestStatistics(
            offered=len(group),
            completed=sum(record.completed for record in group),
            good=None if good is None else len(good),
            duration_s=duration,
            good_input_tokens=None if good is None else sum_of(record.input_tokens for record in good),
            good_output_tokens=None if good is None else sum_of(record.output_tokens for record in good),
            sessions=len(sessions),
            good_sessions=None if good is None else sum(kept[number] == count for number, count in sessions.items()),
            latencies=_latency_statistics(stable, gaps_ms, since_sent=False),
            client_latencies=_latency_statistics(stable, gaps_ms, since_sent=True),
        )

    overall = statistics(records)
    by_class = {name: [record for record in records if record.name == name] for name in names}
    classes = {name: overall if len(own) == len(records) else statistics(own) for name, own in by_class.items()}
    return RunSummary(overall, classes, window)


def sum_of(values: Iterable[int | None]) -> int | None:
    """Return the sum of counts; None if one of them is unknown."""
    counts = list(values)
    return None if None in counts else sum(count for count in counts if count is not None)


def _latency_statistics(
    records: Sequence[RequestRecord], gaps_ms: NDArray[np.float64], since_sent: bool
) -> dict[str, float | None]:
    """Return mean and percentiles of each latency in ms, and of the gaps; None without completed requests.

    The mean is that of completed requests. In a percentile, a request that failed counts, too (`_failed_latencies`): a
    server that drops its slowest requests would otherwise have the lower latency.
    """
    found = [record.latencies_ms(since_sent) for record in records if record.completed]
    values = {name: np.array([each[name] for each in found if name in each]) for name in LATENCY_NAMES}
    values["itl"] = gaps_ms
    failed = [record for record in records if not record.completed]
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
