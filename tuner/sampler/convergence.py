"""When a search has converged: the expected improvement of further trials stays small."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_TRIALS = 15
"""Trials before which no search has converged."""
SUGGESTIONS_IN_A_ROW = 5
"""Suggestions in a row whose maximum expected improvement has to be small."""


def converged(max_expected_improvements: Sequence[float | None], min_gain: float) -> bool:
    """Return whether the maximum expected improvement of each of the last five suggestions is below `min_gain`.

    Args:
        max_expected_improvements: of each trial, in order, as a share of the score; None for a trial that was not
            suggested for its expected improvement (the defaults, space-filling trials, rare choices).
        min_gain: as a share of the score.
    """
    known = [each for each in max_expected_improvements if each is not None]
    enough = len(max_expected_improvements) >= LEAST_TRIALS and len(known) >= SUGGESTIONS_IN_A_ROW
    return enough and max(known[-SUGGESTIONS_IN_A_ROW:]) < min_gain
