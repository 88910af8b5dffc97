"""Arrival processes: when the requests of a traffic file are due.

Rates are in requests/s and times in seconds from the start of the run.

- `gamma` has gaps of mean 1 / rate and shape `burstiness`, as `vllm bench serve --burstiness`. A shape of 1 is a
  Poisson process, a lower one gives bursts, a higher one more even arrivals. The index of dispersion of counts tends to
  1 / burstiness.
- `ramp` is a Poisson process whose rate changes linearly from `start_rate` to `end_rate` over the duration. A Poisson
  process of rate 1 is mapped through the inverse of the integrated rate (Cinlar, Introduction to Stochastic Processes,
  1975, theorem 4.7.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from numpy.random import Generator
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from tuner.workloads.reading.traces import Unit, read_times

RequestRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Process(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Closed(_Process):
    """A closed loop: each of `users` sends a request when its last one ends, so requests have no scheduled times."""

    process: Literal["closed"] = "closed"
    users: int = Field(50, ge=1)


class Poisson(_Process):
    """Independent arrivals at a constant rate."""

    process: Literal["poisson"]
    rate: RequestRate

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times without an end."""
        return _cumulated_gaps(random, 1.0, self.rate)


class Gamma(_Process):
    """Arrivals at a constant mean rate with gamma-distributed gaps."""

    process: Literal["gamma"]
    rate: RequestRate
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times without an end."""
        return _cumulated_gaps(random, self.burstiness, self.rate)


class Constant(_Process):
    """One arrival every 1 / rate seconds, the first at 0 s."""

    process: Literal["constant"]
    rate: RequestRate

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times without an end."""
        count = 0
        while True:
            yield count / self.rate
            count += 1


class Ramp(_Process):
    """Poisson arrivals whose rate changes linearly over the duration."""

    process: Literal["ramp"]
    start_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    end_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times up to the end of the ramp.

        With low = start_rate and slope = (end_rate - start_rate) / duration_s, the integrated rate is
        A(t) = low t + slope t² / 2. An arrival of the process of rate 1 at area A is due at
        t = 2 A / (low + sqrt(low² + 2 slope A)).
        """
        assert duration_s is not None  # `Traffic` refuses a ramp without a duration
        low, slope = self.start_rate, (self.end_rate - self.start_rate) / duration_s
        for area in _cumulated_gaps(random, 1.0, 1.0):
            root = low * low + 2.0 * slope * area
            rate = math.sqrt(root) if root >= 0.0 else math.nan
            if not low + rate > 0.0:
                return
            yield 2.0 * area / (low + rate)


class TraceArrivals(_Process):
    """Times from a file; the first becomes 0, and `speed` 2 halves all gaps.

    The file has one time per line, in seconds and in order, or is a recorded trace (`tuner.workloads.reading.traces`).
    `unit` is that of its times, where the file does not tell or tells it wrongly.
    """

    process: Literal["trace"]
    file: Path
    speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    unit: Unit | None = None

    @model_serializer(mode="wrap")
    def _without_default(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave an unstated unit out, so that a study from before it existed has the same workload."""
        fields: dict[str, Any] = dump(self)
        return fields if self.unit is not None else {key: each for key, each in fields.items() if key != "unit"}

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times of the file.

        Raises:
            UserError: with file and line, if the file cannot be read, is empty, has a line that is not a time, or is
                not sorted, and if the unit of its times is not known.
        """
        times = read_times(self.file, self.unit)
        return iter([(at - times[0]) / self.speed for at in times])


Arrivals = Annotated[Closed | Poisson | Gamma | Constant | Ramp | TraceArrivals, Field(discriminator="process")]


def _cumulated_gaps(random: Generator, shape: float, rate: float) -> Iterator[float]:
    """Yield the cumulated sums of gamma-distributed gaps with mean 1 / rate."""
    at = 0.0
    while True:
        for gap in random.gamma(shape, 1.0 / (shape * rate), 1024).tolist():
            at += gap
            yield at
