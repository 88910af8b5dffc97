"""The records of a load generator about its requests, and of the server about one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

SecondsArray = NDArray[np.float64]
"""Times in seconds on CLOCK_MONOTONIC, the clock of the server's log, unless another clock is named."""


@dataclass(frozen=True)
class RequestStream:
    """The requests of one run.

    Attributes:
        requests: their number.
        rate: mean arrivals per second.
        poisson: whether they arrive at Poisson times; otherwise at even ones.
        output_tokens: of each request.
        timeout_s: after which a generator gives a request up, if it has such a limit.
        seed: of the arrival times.
    """

    requests: int
    rate: float
    poisson: bool
    output_tokens: int
    timeout_s: float
    seed: int = 0


@dataclass(frozen=True)
class GeneratorRecord:
    """A generator's record of one request; None for a value that it does not record.

    Attributes:
        sent_s: when it was sent.
        first_token_s: when its first token came.
        token_times: number of tokens with a time of their own.
        error: its error; None if it completed.
    """

    sent_s: float | None
    first_token_s: float | None
    token_times: int
    error: str | None


@dataclass(frozen=True)
class GeneratorResult:
    """Everything that a generator recorded in one run.

    Attributes:
        records: one for each request that it recorded.
        scheduled_s: scheduled times of the requests, ascending.
        schedule_recorded: whether the generator records the schedule; otherwise it is drawn again from the seed.
        early: number of requests that were scheduled before the run began; `scheduled_s` lacks them.
    """

    records: list[GeneratorRecord]
    scheduled_s: SecondsArray
    schedule_recorded: bool
    early: int = 0


@dataclass(frozen=True)
class GeneratorRun:
    """One run of a generator against the fake server.

    Attributes:
        exit_code: of the generator's process.
        ended: whether the generator ended by itself; otherwise it was stopped.
        wall_s: wall-clock seconds of the run.
        first_s: seconds until the first request arrived.
        cpu_s: processor time of the generator's processes, in seconds.
        arrivals: when requests arrived at the server.
    """

    exit_code: int
    ended: bool
    wall_s: float
    first_s: float
    cpu_s: float
    arrivals: SecondsArray


def shifted(records: Sequence[GeneratorRecord], seconds: float) -> list[GeneratorRecord]:
    """Return the records with their times moved by `seconds`, to another clock."""
    return [
        replace(
            record,
            sent_s=None if record.sent_s is None else record.sent_s + seconds,
            first_token_s=None if record.first_token_s is None else record.first_token_s + seconds,
        )
        for record in records
    ]


def sent_times(records: Sequence[GeneratorRecord]) -> SecondsArray:
    """Return when requests were sent, ascending."""
    return np.sort(np.array([record.sent_s for record in records if record.sent_s is not None], dtype=float))


def least_delay(later: SecondsArray, earlier: SecondsArray) -> float:
    """Return the least difference between two series of times of the same events.

    For times of two clocks, the difference is the clocks' offset plus the least delay.
    """
    return float((np.sort(later) - np.sort(earlier)).min())
