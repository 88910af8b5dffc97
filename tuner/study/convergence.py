"""When a search ends before its last trial: once trials in a row have brought too little.

The surrogate's bound of the gain that remains is too wide to end a search (docs/reports/2026-11-28-min-gain.md).
"""

from __future__ import annotations

from collections.abc import Sequence

PATIENCE = 15
"""Trials in a row that have to bring too little."""

LEAST_TRIALS = 18
"""Trials before which no search converges."""


def converged(scores: Sequence[float | None], min_gain: float) -> bool:
    """Return whether the last `PATIENCE` trials raised the best score by less than `min_gain`.

    Args:
        scores: of the trials so far, in order, 1 for the reference; None for one that failed or missed an SLO.
        min_gain: as a share of the score; 0: a search never ends early.
    """
    before = [score for score in scores[:-PATIENCE] if score is not None]
    if min_gain <= 0 or len(scores) < LEAST_TRIALS or not before:
        return False
    latest = [score for score in scores[-PATIENCE:] if score is not None]
    return max(latest, default=0.0) < max(before) * (1.0 + min_gain)
