"""The capacity that a search over request rates has found."""

from __future__ import annotations

from collections.abc import Iterable


def capacity_of(rates: Iterable[tuple[float, bool]]) -> float | None:
    """Return the highest rate that held below every rate that missed; None if there is none.

    Args:
        rates: each measured rate, in requests/s, and whether every SLO held at it.
    """
    measured = list(rates)
    lowest_miss = min((rate for rate, held in measured if not held), default=float("inf"))
    return max((rate for rate, held in measured if held and rate < lowest_miss), default=None)
