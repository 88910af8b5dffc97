"""When requests arrive: the processes, and the times that one seed makes of them.

Rates are requests a second, times seconds from the start of the load. `gamma` has gaps of mean 1 / rate and shape
`burstiness` (as `vllm bench serve --burstiness`): 1 is Poisson, below it bursts, above it is more even; the index of
dispersion of counts tends to 1 / burstiness. `ramp` is a Poisson process whose rate goes from `start_rate` to
`end_rate` in a straight line over the load's duration, made by mapping a Poisson process of rate 1 through the inverse
of the integrated rate (Cinlar, Introduction to Stochastic Processes, 1975, theorem 4.7.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from numpy.random import Generator
from pydantic import BaseModel, ConfigDict, Field

from tuner.workloads.files import read_lines

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Process(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Closed(_Process):
    """`users` that each send a request, wait for its end, and send the next: a request has no time of its own."""

    process: Literal["closed"] = "closed"
    users: int = Field(50, ge=1)


class Poisson(_Process):
    """Independent arrivals at one rate."""

    process: Literal["poisson"]
    rate: Rate

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times, without end."""
        return _summed(random, 1.0, self.rate)


class Gamma(_Process):
    """Arrivals at one rate in bursts, or more evenly than by chance."""

    process: Literal["gamma"]
    rate: Rate
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times, without end."""
        return _summed(random, self.burstiness, self.rate)


class Constant(_Process):
    """One request every 1 / rate seconds, the first at once."""

    process: Literal["constant"]
    rate: Rate

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times, without end."""
        count = 0
        while True:
            yield count / self.rate
            count += 1


class Ramp(_Process):
    """Poisson arrivals whose rate changes in a straight line over the load's duration."""

    process: Literal["ramp"]
    start_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    end_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times up to the end of the ramp."""
        assert duration_s is not None  # a ramp without a duration is refused where the workload is read
        low, slope = self.start_rate, (self.end_rate - self.start_rate) / duration_s
        for area in _summed(random, 1.0, 1.0):
            root = low * low + 2.0 * slope * area
            rate = math.sqrt(root) if root >= 0.0 else math.nan
            if not low + rate > 0.0:
                return
            yield 2.0 * area / (low + rate)


class TraceArrivals(_Process):
    """Times from a file: a number of seconds a line, in order. The first is moved to 0; `speed` 2 is twice as fast."""

    process: Literal["trace"]
    file: Path
    speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times of the file.

        Raises:
            UserError: naming file and line, when the file cannot be read, is empty, holds something that is no number
                of seconds, or is out of order.
        """
        found = read_trace(self.file)
        return iter([(at - found[0]) / self.speed for at in found])


Arrivals = Annotated[Closed | Poisson | Gamma | Constant | Ramp | TraceArrivals, Field(discriminator="process")]


def read_trace(file: Path) -> list[float]:
    """Return the times of a trace; empty lines are passed over. For errors see `TraceArrivals.times`."""
    return read_lines(file, "trace", "a file with a time in seconds a line", _next_time)


def _next_time(text: str, before: list[float]) -> float:
    try:
        at = float(text)
    except ValueError:
        at = math.nan
    if not math.isfinite(at):
        raise ValueError(f"{text[:40]!r} is no time in seconds; give one number a line")
    if before and at < before[-1]:
        raise ValueError(f"{at:g} s comes after {before[-1]:g} s; sort the trace by time")
    return at


def _summed(random: Generator, shape: float, rate: float) -> Iterator[float]:
    """Yield the running sum of gamma gaps of mean 1 / rate."""
    at = 0.0
    while True:
        for gap in random.gamma(shape, 1.0 / (shape * rate), 1024).tolist():
            at += gap
            yield at
