"""The figures of a load generator, from arrival times at the server and from the generator's own records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.loadgen.records import GeneratorRecord, GeneratorResult, GeneratorRun, SecondsArray, sent_times
from tuner.loadgen.watch import percentile

WINDOWS = (1, 10, 100)
"""Widths of the windows in mean gaps: 10,000, 1,000 and 100 windows for 10,000 requests."""
CUT_OFF_FAULTS = ("stall", "reset", "half", "malformed")
"""Faults that come after half of the tokens."""
COMPLETED, NO_RECORD = "completed", "no record"
NEAREST_S = 0.025
"""Half of the gap between two requests of the run with faults."""
EQUAL_GAPS_S = 5e-7
"""Gaps that differ by less may be one number of a random stream: Unix times in doubles have steps of 2.4e-7 s."""
LONGEST_ERROR = 100
"""Characters of an error that are reported."""


@dataclass(frozen=True)
class Dispersion:
    """Index of dispersion of counts in windows: their variance / their mean, 1 for Poisson arrivals.

    Attributes:
        value: the index.
        error: its standard error for Poisson arrivals.
        windows: number of windows.
    """

    value: float
    error: float
    windows: int


@dataclass(frozen=True)
class Lateness:
    """Percentiles of how late requests were, in ms."""

    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass
class SteadyFigures:
    """The figures of a run without faults.

    Attributes:
        arrivals: number of requests that arrived.
        records: number of requests that the generator recorded.
        schedule_recorded: whether the generator records its schedule.
        early: number of requests that were scheduled before the run began.
        scheduled_dispersion: of scheduled times, for each window.
        arrived_dispersion: of arrivals, for each window.
        scheduled_gaps: squared coefficient of variation of scheduled gaps.
        arrived_gaps: squared coefficient of variation of gaps between arrivals.
        repeated_gaps: see `repeated_gaps`.
        span_ratio: duration of the arrivals / duration of the schedule.
        sent_late: of sending relative to the schedule.
        arrived_late: of arrivals relative to the schedule.
        wall_s: wall-clock seconds of the run.
        first_s: seconds until the first request arrived.
        cpu_s: processor time of the generator, in seconds.
        first_token_times: number of records with the time of the first token.
        token_times: number of tokens with a time, over all records.
    """

    arrivals: int
    records: int
    schedule_recorded: bool
    early: int
    scheduled_dispersion: list[Dispersion]
    arrived_dispersion: list[Dispersion]
    scheduled_gaps: float
    arrived_gaps: float
    repeated_gaps: float
    span_ratio: float
    sent_late: Lateness
    arrived_late: Lateness
    wall_s: float
    first_s: float
    cpu_s: float
    first_token_times: int
    token_times: int


@dataclass
class FaultFigures:
    """The figures of a run with faults.

    Attributes:
        offered: number of requests.
        records: number of requests that the generator recorded.
        ended: whether the generator ended by itself.
        wall_s: wall-clock seconds of the run.
        outcomes: for each fault, the recorded error, `completed` or `no record`.
        cut_off: number of requests with a recorded error after half of the tokens.
        cut_off_with_first_token: how many of these have the time of their first token.
        error: why the generator left no result; None if it did.
    """

    offered: int
    records: int
    ended: bool
    wall_s: float
    outcomes: dict[str, str] = field(default_factory=dict)
    cut_off: int = 0
    cut_off_with_first_token: int = 0
    error: str | None = None


@dataclass
class GeneratorFigures:
    """All figures of one generator.

    Attributes:
        name: the generator's name.
        version: its installed version.
        load_average: of the machine over one minute, before the first run.
        steady: the run without faults; None if it left no result.
        steady_error: why it left no result.
        faulty: the runs with faults.
    """

    name: str
    version: str
    load_average: float
    steady: SteadyFigures | None = None
    steady_error: str | None = None
    faulty: list[FaultFigures] = field(default_factory=list)


def dispersion(times: SecondsArray, gaps: float) -> Dispersion:
    """Return the index of dispersion for windows of `gaps` mean gaps; a partial last window is left out."""
    since = np.sort(times) - times.min()
    width = gaps * since[-1] / (len(since) - 1)
    windows = int(since[-1] / width + 1e-9)
    counts = np.bincount((since / width).astype(int), minlength=windows)[:windows]
    return Dispersion(float(counts.var(ddof=1) / counts.mean()), math.sqrt(2.0 / (windows - 1)), windows)


def gap_variation(times: SecondsArray) -> float:
    """Return the squared coefficient of variation of the gaps, 1 for Poisson arrivals."""
    gaps = np.diff(np.sort(times))
    return float(gaps.var(ddof=1) / gaps.mean() ** 2)


def repeated_gaps(times: SecondsArray) -> float:
    """Return how often a gap is repeated on average, beyond chance.

    The figure is the number of workers - 1 if all of them draw the same random stream. By chance, a second independent
    exponential gap lies within d of another one with probability d / mean, for a small d.
    """
    gaps = np.sort(np.diff(np.sort(times)))
    near = np.searchsorted(gaps, gaps + EQUAL_GAPS_S, "right") - np.searchsorted(gaps, gaps - EQUAL_GAPS_S, "left") - 1
    return float(near.mean() - len(gaps) * EQUAL_GAPS_S / gaps.mean())


def lateness(times: SecondsArray, scheduled: SecondsArray, early: int) -> Lateness:
    """Return how late `times` are: the n-th time minus the n-th scheduled one, without the first `early` times."""
    late = (1e3 * (np.sort(times)[early:] - np.sort(scheduled))).tolist()
    return Lateness(percentile(late, 0.5), percentile(late, 0.99), percentile(late, 1.0))


def steady_figures(result: GeneratorResult, run: GeneratorRun) -> SteadyFigures:
    """Return the figures of a run without faults."""
    scheduled, arrived = result.scheduled_s, run.arrivals
    return SteadyFigures(
        arrivals=len(arrived),
        records=len(result.records),
        schedule_recorded=result.schedule_recorded,
        early=result.early,
        scheduled_dispersion=[dispersion(scheduled, gaps) for gaps in WINDOWS],
        arrived_dispersion=[dispersion(arrived, gaps) for gaps in WINDOWS],
        scheduled_gaps=gap_variation(scheduled),
        arrived_gaps=gap_variation(arrived),
        repeated_gaps=repeated_gaps(scheduled),
        span_ratio=float(np.ptp(arrived[result.early :]) / np.ptp(scheduled)),
        sent_late=lateness(sent_times(result.records), scheduled, result.early),
        arrived_late=lateness(arrived, scheduled, result.early),
        wall_s=run.wall_s,
        first_s=run.first_s,
        cpu_s=run.cpu_s,
        first_token_times=sum(record.first_token_s is not None for record in result.records),
        token_times=sum(record.token_times for record in result.records),
    )


def fault_figures(result: GeneratorResult, run: GeneratorRun, offered: int, faults: Mapping[str, str]) -> FaultFigures:
    """Return the figures of a run with faults.

    Args:
        result: the generator's records.
        run: the run.
        offered: number of requests.
        faults: for the number of an arrival, the kind of its fault.
    """
    figures = FaultFigures(offered, len(result.records), run.ended, run.wall_s)
    for number, kind in faults.items():
        record = _record_of_arrival(int(number), result, run.arrivals)
        if record is None:
            figures.outcomes[f"{number} {kind}"] = NO_RECORD
            continue
        outcome = COMPLETED if record.error is None else record.error.strip().splitlines()[-1][:LONGEST_ERROR]
        figures.outcomes[f"{number} {kind}"] = outcome
        if record.error is not None and kind in CUT_OFF_FAULTS:
            figures.cut_off += 1
            figures.cut_off_with_first_token += record.first_token_s is not None
    return figures


def _record_of_arrival(number: int, result: GeneratorResult, arrivals: SecondsArray) -> GeneratorRecord | None:
    """Return the record of the n-th arrival: the n-th that was sent, or the nearest in time if records are missing."""
    sent = sorted((record for record in result.records if record.sent_s is not None), key=_sent_s)
    if len(sent) == len(arrivals):
        return sent[number]
    nearest = min(sent, key=lambda record: abs(_sent_s(record) - arrivals[number]), default=None)
    return nearest if nearest is not None and abs(_sent_s(nearest) - arrivals[number]) <= NEAREST_S else None


def _sent_s(record: GeneratorRecord) -> float:
    return math.inf if record.sent_s is None else record.sent_s
