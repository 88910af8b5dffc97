"""Clocks: the machine's, and the interface for the simulated engine's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; the value never decreases."""

    def now(self) -> datetime:
        """Return the date and time, UTC."""


class RealClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)


def moment_after(start: datetime, begun: float) -> datetime:
    """Return the date of now for a period that began at the date `start`.

    It is `start` plus the seconds of the machine's monotonic clock, so that a date that is set back or forward in
    between neither ends the period before it began nor lengthens it.

    Args:
        start: the date of the beginning.
        begun: `time.monotonic()` at the beginning, in the same process.
    """
    return start + timedelta(seconds=time.monotonic() - begun)


class Stopwatch:
    """Adds up seconds by name; the rest is `own`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock.monotonic()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the seconds of the `with` block to `name`."""
        start = self._clock.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock.monotonic() - start

    def seconds(self) -> dict[str, float]:
        """Return seconds by name, and as `own` the rest of the time since construction."""
        rest = self._clock.monotonic() - self._start - sum(self._seconds.values())
        return {**self._seconds, "own": max(rest, 0.0)}
