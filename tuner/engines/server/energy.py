"""The energy that a benchmark takes, from a GPU's counter."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from storage.metrics import ENERGY
from storage.records import Repeat
from tuner import gpu

SAMPLING_PERIOD_S = 0.1
"""Seconds between two readings during a benchmark."""

_JOIN_S = 5.0

Reading = tuple[float, float]
"""A time in seconds and the counter's value in joules."""


class EnergyMeter:
    """Reads the counters of GPUs at the start, every `SAMPLING_PERIOD_S` seconds, and at the end of the context.

    A reading is the sum of all counters.

    Args:
        indices: of the GPUs, as NVML numbers them; empty: nothing is read.
        read: returns a counter in joules, None where there is none.
    """

    def __init__(self, indices: Sequence[int], read: Callable[[int], float | None] = gpu.energy_j) -> None:
        self.readings: list[Reading] = []
        self._indices = tuple(indices)
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="energy-samples", daemon=True)

    def __enter__(self) -> EnergyMeter:
        if self._reads():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        self._reads()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLING_PERIOD_S):
            self._reads()

    def _reads(self) -> bool:
        """Keep the counters' present sum; return whether each GPU has a counter."""
        values = [value for index in self._indices if (value := self._read(index)) is not None]
        complete = bool(values) and len(values) == len(self._indices)
        if complete:
            self.readings.append((time.monotonic(), math.fsum(values)))
        return complete


def with_energy(repeat: Repeat, readings: Sequence[Reading]) -> Repeat:
    """Return a repeat with its energy per output token, in joules; None without a counter or an output token.

    With E the energy of the benchmark, r its output throughput in tokens per second and d its duration in seconds, a
    token takes E / (r d). The readings start before the benchmark, while its client prepares, and end after it. Of all
    windows of the benchmark's duration, the one with the most energy is the benchmark's: a GPU takes least when idle.
    """
    rate, duration = repeat.metrics.get("output_throughput"), repeat.duration_s
    energy = None if not duration else energy_of_window(readings, duration)
    tokens = None if not rate or not duration else rate * duration
    value = energy / tokens if energy is not None and tokens else None
    return replace(repeat, metrics={**repeat.metrics, ENERGY: value})


def energy_of_window(readings: Sequence[Reading], duration_s: float) -> float | None:
    """Return the most energy in joules of a window of `duration_s` seconds that begins or ends at a reading.

    Between two readings the energy is interpolated linearly. A window that is longer than the readings has all their
    energy. None with fewer than two readings, and where the counter decreases, as when the driver is loaded again.
    """
    values = [value for _, value in readings]
    if len(readings) < 2 or values != sorted(values):
        return None
    times = [at for at, _ in readings]
    first, last = times[0], times[-1]
    starts = [first, *(each for at in times for each in (at, at - duration_s) if first <= each <= last - duration_s)]
    return max(_energy_at(readings, times, start + duration_s) - _energy_at(readings, times, start) for start in starts)


def _energy_at(readings: Sequence[Reading], times: Sequence[float], moment: float) -> float:
    """Return the counter at a moment, interpolated between readings, and constant outside of them."""
    after = bisect_right(times, moment)
    if after == 0:
        return readings[0][1]
    if after == len(readings):
        return readings[-1][1]
    (before_s, before), (after_s, value) = readings[after - 1], readings[after]
    return before + (value - before) * (moment - before_s) / (after_s - before_s)
