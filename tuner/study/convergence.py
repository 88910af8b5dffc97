"""When a search ends before its last trial: once trials in a row have brought too little.

The surrogate's bound of the gain that remains is too wide to end a search (docs/reports/2026-11-28-min-gain.md). Where
a gain has been found, more are left than where none has, and the search is given more trials
(docs/reports/2026-11-30-early-ends.md), also where the reference misses an SLO
(docs/reports/2026-11-30-twenty-seeds-everywhere.md).
"""

from __future__ import annotations

from collections.abc import Sequence

PATIENCE = 15
"""Trials in a row that have to bring too little."""

PATIENCE_AFTER_GAIN = 25
"""The same once the search has found a gain, or a trial that meets the SLOs where the reference misses one."""

CLEAR_GAIN = 2.0
"""How many times the least gain a trial has to be better than the reference, for a gain to be found: 10 % at 5 %. The
best of 18 equal trials looks 7 % better."""

LEAST_TRIALS = 18
"""Trials before which no search converges."""


def converged(scores: Sequence[float | None], min_gain: float, *, reference_meets: bool = True) -> int | None:
    """Return how many trials in a row have raised the best score by too little; None if the search should go on.

    Args:
        scores: of the trials so far, in order, 1 for the reference; None for one that failed or missed an SLO.
        min_gain: what is too little, as a share of the score; 0: a search never ends early.
        reference_meets: whether the reference meets the SLOs.
    """
    best = _best(scores)
    if min_gain <= 0 or len(scores) < LEAST_TRIALS or best is None:
        return None
    patience = PATIENCE if reference_meets and best < 1.0 + CLEAR_GAIN * min_gain else PATIENCE_AFTER_GAIN
    before = _best(scores[:-patience])
    return patience if before is not None and best < before * (1.0 + min_gain) else None


def _best(scores: Sequence[float | None]) -> float | None:
    return max((score for score in scores if score is not None), default=None)
