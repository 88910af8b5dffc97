"""Capacity: the highest request rate at which every SLO holds, by bisection against one running server.

From the traffic's own rate the rate is doubled while the SLOs hold, or halved until they do; then the gap between the
highest rate that held and the lowest that did not is halved, geometrically, until their ratio is at most `RATIO`. Each
rate gets prompts and arrivals of its own. A rate is taken at its word: near the edge chance decides, so two searches
differ by more than the ratio; several rounds tell by how much.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.records import Repeat

RATIO = 1.1
"""Between the lowest rate that missed and the highest that held, where the search ends."""

MOST_STEPS = 5
"""Doublings or halvings from the first rate: a factor of 32 either way."""


@dataclass(frozen=True)
class RatePoint:
    """One rate that was tried, in requests/s, what was measured at it, and the SLOs that it missed."""

    rate: float
    repeat: Repeat
    missed: tuple[str, ...]

    @property
    def held(self) -> bool:
        """Whether every SLO held."""
        return not self.missed


@dataclass(frozen=True)
class CapacitySearch:
    """What a search found. `best` is the point at the capacity; None if no rate held.

    Where every rate held, the capacity is at least the highest that was tried.
    """

    points: tuple[RatePoint, ...]

    @property
    def best(self) -> RatePoint | None:
        """The highest rate that held below every rate that missed."""
        lowest_miss = min((point.rate for point in self.points if not point.held), default=math.inf)
        held = [point for point in self.points if point.held and point.rate < lowest_miss]
        return max(held, key=lambda point: point.rate, default=None)


def find_capacity(measure: Callable[[float], RatePoint], first: float) -> CapacitySearch:
    """Search the capacity.

    Args:
        measure: sends the traffic at a rate, and judges it.
        first: the rate to begin with, in requests/s.
    """
    points = [measure(first)]
    rate, factor = first, 2.0 if points[0].held else 0.5
    for _ in range(MOST_STEPS):
        rate *= factor
        points.append(measure(rate))
        if points[-1].held != points[0].held:
            break
    while (gap := _gap(points)) is not None and gap[1] / gap[0] > RATIO:
        points.append(measure(math.sqrt(gap[0] * gap[1])))
    return CapacitySearch(tuple(points))


def _gap(points: Sequence[RatePoint]) -> tuple[float, float] | None:
    """Return the highest rate that held and the lowest that missed above it; None if either is not known."""
    best = CapacitySearch(tuple(points)).best
    missed = [point.rate for point in points if not point.held]
    return None if best is None or not missed else (best.rate, min(missed))


SHOWN = ("success_rate", "goodput_share", "goodput", "p50_ttft_ms", "p95_ttft_ms", "p99_ttft_ms", "p95_tpot_ms")


def write_points(path: Path, points: Sequence[RatePoint]) -> None:
    """Write a CSV file with one row a rate, in the order tried."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rate", "held", "missed", "offered", "completed", *SHOWN])
        for point in points:
            repeat = point.repeat
            shown = ["" if (value := repeat.metrics.get(name)) is None else f"{value:.6g}" for name in SHOWN]
            writer.writerow(
                [f"{point.rate:.6g}", point.held, " ".join(point.missed), repeat.offered, repeat.completed, *shown]
            )
