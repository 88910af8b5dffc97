"""Search the capacity, the highest request rate at which every SLO holds, by bisection against one running server.

The search starts at the traffic's own rate r and doubles it while the SLOs hold, or halves it until they hold. Then it
tries the geometric mean sqrt(low * high) of the highest rate that held and the lowest that missed, until high / low is
at most `RATIO`. Each rate has prompts and arrivals of its own and is measured once. Near the capacity, noise decides,
so two searches differ by more than the ratio; repeats show by how much.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from records.measured import capacity_of
from records.trials import Repeat

RATIO = 1.1
"""The search ends at this ratio of the lowest rate that missed an SLO to the highest rate that held."""

MOST_STEPS = 5
"""Doublings or halvings from the first rate, unless said otherwise: a factor of 32 either way."""


@dataclass(frozen=True)
class RatePoint:
    """One rate that was tried, in requests/s, its measurement, and the SLOs that it missed."""

    rate: float
    repeat: Repeat
    missed: tuple[str, ...]

    @property
    def held(self) -> bool:
        """Whether every SLO held."""
        return not self.missed


@dataclass(frozen=True)
class CapacitySearch:
    """The points of a search. `best` is the point at the capacity; None if the SLOs held at no rate.

    If they held at every rate, the capacity is at least the highest one.
    """

    points: tuple[RatePoint, ...]

    @property
    def best(self) -> RatePoint | None:
        """The highest rate that held below every rate that missed."""
        capacity = capacity_of((point.rate, point.held) for point in self.points)
        return next((point for point in self.points if point.held and point.rate == capacity), None)


def find_capacity(
    measure: Callable[[float], RatePoint],
    first: float,
    *,
    ratio: float = RATIO,
    factor: float = 2.0,
    most_steps: int = MOST_STEPS,
) -> CapacitySearch:
    """Search the capacity.

    Args:
        measure: sends the traffic at a rate and compares the metrics with the SLOs.
        first: the first rate, in requests/s.
        ratio: where the search ends, see `RATIO`.
        factor: of the steps up or down from the first rate, until the SLOs change.
        most_steps: such steps at most.
    """
    points = [measure(first)]
    rate, factor = first, factor if points[0].held else 1.0 / factor
    for _ in range(most_steps):
        rate *= factor
        points.append(measure(rate))
        if points[-1].held != points[0].held:
            break
    while (gap := _gap(points)) is not None and gap[1] / gap[0] > ratio:
        points.append(measure(math.sqrt(gap[0] * gap[1])))
    return CapacitySearch(tuple(points))


def _gap(points: Sequence[RatePoint]) -> tuple[float, float] | None:
    """Return the highest rate that held and the lowest that missed above it; None if either is missing."""
    best = CapacitySearch(tuple(points)).best
    missed = [point.rate for point in points if not point.held]
    return None if best is None or not missed else (best.rate, min(missed))


SHOWN_METRICS = ("success_rate", "goodput_share", "goodput", "p50_ttft_ms", "p95_ttft_ms", "p99_ttft_ms", "p95_tpot_ms")


def write_points(path: Path, points: Sequence[RatePoint]) -> None:
    """Write a CSV file with one row per rate, in the order tried."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rate", "held", "missed", "offered", "completed", *SHOWN_METRICS])
        for point in points:
            repeat = point.repeat
            values = ["" if (value := repeat.metrics.get(name)) is None else f"{value:.6g}" for name in SHOWN_METRICS]
            writer.writerow(
                [f"{point.rate:.6g}", point.held, " ".join(point.missed), repeat.offered, repeat.completed, *values]
            )
