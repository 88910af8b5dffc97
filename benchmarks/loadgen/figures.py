"""What `loadgen.py` computes from arrival times and from the records that a load generator kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tuner.loadgen.watch import percentile

Times = NDArray[np.float64]

WINDOWS = (1, 10, 100)
"""Mean gaps to a window: 10,000, 1,000 and 100 windows."""

CUT_OFF = ("stall", "reset", "half", "malformed")
"""Faults that come after half of the tokens."""

COMPLETED, NO_RECORD = "completed", "no record"

NEAR_S = 0.025
"""Half of the gap between two requests of the run with faults."""

SAME_GAP_S = 5e-7
"""Two drawn gaps this close may be one number of a random stream: Unix times in doubles are 2.4e-7 s apart."""


@dataclass(frozen=True)
class Record:
    """What a generator wrote about one request; None where it does not tell.

    Times are seconds on the clock of the server's log, CLOCK_MONOTONIC; `token_times` counts the tokens that have one.
    """

    sent_s: float | None
    first_token_s: float | None
    token_times: int
    error: str | None


@dataclass(frozen=True)
class Reading:
    """All that a generator left.

    `scheduled_s` are the times at which it meant to send, in order, on the same clock; `told` is False where they were
    made again from its seed. `early` requests had a scheduled time before the load began and are not among them.
    """

    records: list[Record]
    scheduled_s: Times
    told: bool
    early: int = 0


@dataclass(frozen=True)
class Dispersion:
    """Variance by mean of the counts in windows, with the standard error that it has for Poisson arrivals."""

    value: float
    error: float
    windows: int


@dataclass(frozen=True)
class Run:
    """One run of a generator: what it used, and what the server saw. `ended` is False if it had to be ended."""

    exit_code: int
    ended: bool
    wall_s: float
    first_s: float
    cpu_s: float
    arrivals: Times


@dataclass
class Steady:
    """The figures of the first run."""

    arrivals: int
    records: int
    told: bool
    early: int
    scheduled_dispersion: list[Dispersion]
    arrived_dispersion: list[Dispersion]
    scheduled_gaps: float
    arrived_gaps: float
    gaps_again: float
    span_ratio: float
    sent_late: Lateness
    arrived_late: Lateness
    wall_s: float
    first_s: float
    cpu_s: float
    first_token_times: int
    token_times: int


@dataclass
class Faulty:
    """What became of the faults: `said` is, for each number and kind, the error, `completed` or `no record`."""

    offered: int
    records: int
    ended: bool
    wall_s: float
    said: dict[str, str] = field(default_factory=dict)
    cut_off: int = 0
    cut_off_with_first_token: int = 0
    error: str | None = None


@dataclass
class Result:
    """All of one generator; `load_average` is the machine's, of one minute, before it began."""

    name: str
    version: str
    load_average: float
    steady: Steady | None = None
    steady_error: str | None = None
    faulty: list[Faulty] = field(default_factory=list)


def dispersion(times: Times, gaps: float) -> Dispersion:
    """Return the index of dispersion of counts in windows of so many mean gaps; the last, partial one is left out."""
    since = np.sort(times) - times.min()
    width = gaps * since[-1] / (len(since) - 1)
    windows = int(since[-1] / width + 1e-9)
    counts = np.bincount((since / width).astype(int), minlength=windows)[:windows]
    return Dispersion(float(counts.var(ddof=1) / counts.mean()), math.sqrt(2.0 / (windows - 1)), windows)


def gap_dispersion(times: Times) -> float:
    """Return the squared coefficient of variation of the gaps, 1 for Poisson."""
    gaps = np.diff(np.sort(times))
    return float(gaps.var(ddof=1) / gaps.mean() ** 2)


def gaps_again(times: Times) -> float:
    """Return how often a drawn gap comes again, on average, beyond chance: workers - 1 if all draw the same stream.

    Of independent exponential gaps two lie within d of each other with probability d / mean, for a small d.
    """
    gaps = np.sort(np.diff(np.sort(times)))
    near = np.searchsorted(gaps, gaps + SAME_GAP_S, "right") - np.searchsorted(gaps, gaps - SAME_GAP_S, "left") - 1
    return float(near.mean() - len(gaps) * SAME_GAP_S / gaps.mean())


def promptest(later: Times, earlier: Times) -> float:
    """Return the least difference of two clocks' times of the same events: the clocks' offset and the least delay."""
    return float((np.sort(later) - np.sort(earlier)).min())


@dataclass(frozen=True)
class Lateness:
    """How late requests were, in ms."""

    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


def lateness(happened: Times, scheduled: Times, early: int) -> Lateness:
    """Return how late things happened; the n-th is set against the n-th scheduled, without the first `early`."""
    late = (1e3 * (np.sort(happened)[early:] - np.sort(scheduled))).tolist()
    return Lateness(percentile(late, 0.5), percentile(late, 0.99), percentile(late, 1.0))


def shifted(records: Sequence[Record], by: float) -> list[Record]:
    """Return records with their times moved to another clock."""
    return [
        replace(
            record,
            sent_s=None if record.sent_s is None else record.sent_s + by,
            first_token_s=None if record.first_token_s is None else record.first_token_s + by,
        )
        for record in records
    ]


def sent_times(records: Sequence[Record]) -> Times:
    """Return when requests were sent, in order."""
    return np.sort(np.array([record.sent_s for record in records if record.sent_s is not None], dtype=float))


def steady_of(reading: Reading, run: Run) -> Steady:
    """Return the figures of the first run."""
    scheduled, arrived = reading.scheduled_s, run.arrivals
    return Steady(
        arrivals=len(arrived),
        records=len(reading.records),
        told=reading.told,
        early=reading.early,
        scheduled_dispersion=[dispersion(scheduled, gaps) for gaps in WINDOWS],
        arrived_dispersion=[dispersion(arrived, gaps) for gaps in WINDOWS],
        scheduled_gaps=gap_dispersion(scheduled),
        arrived_gaps=gap_dispersion(arrived),
        gaps_again=gaps_again(scheduled),
        span_ratio=float(np.ptp(arrived[reading.early :]) / np.ptp(scheduled)),
        sent_late=lateness(sent_times(reading.records), scheduled, reading.early),
        arrived_late=lateness(arrived, scheduled, reading.early),
        wall_s=run.wall_s,
        first_s=run.first_s,
        cpu_s=run.cpu_s,
        first_token_times=sum(record.first_token_s is not None for record in reading.records),
        token_times=sum(record.token_times for record in reading.records),
    )


def faults_of(reading: Reading, run: Run, offered: int, faults: Mapping[str, str]) -> Faulty:
    """Return what the records say of requests that ran into faults."""
    found = Faulty(offered, len(reading.records), run.ended, run.wall_s)
    for number, kind in faults.items():
        record = of_arrival(int(number), reading, run.arrivals)
        if record is None:
            found.said[f"{number} {kind}"] = NO_RECORD
            continue
        said = COMPLETED if record.error is None else record.error.strip().splitlines()[-1][:100]
        found.said[f"{number} {kind}"] = said
        if record.error is not None and kind in CUT_OFF:
            found.cut_off += 1
            found.cut_off_with_first_token += record.first_token_s is not None
    return found


def of_arrival(number: int, reading: Reading, arrivals: Times) -> Record | None:
    """Return the record of the n-th arrival: the n-th that was sent, or, where some have none, the nearest in time."""
    sent = sorted((record for record in reading.records if record.sent_s is not None), key=sent_s)
    if len(sent) == len(arrivals):
        return sent[number]
    closest = min(sent, key=lambda record: abs(sent_s(record) - arrivals[number]), default=None)
    return closest if closest is not None and abs(sent_s(closest) - arrivals[number]) <= NEAR_S else None


def sent_s(record: Record) -> float:
    """Return when a request was sent, for sorting."""
    return math.inf if record.sent_s is None else record.sent_s
