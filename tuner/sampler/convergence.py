"""When a search has settled: its next trials are expected to gain less than they are worth."""

from __future__ import annotations

from collections.abc import Sequence

SETTLED_FROM = 15
"""Trials before which no search counts as settled."""
IN_A_ROW = 5
"""Choices in a row of which little is expected."""


def converged(outlooks: Sequence[float | None], least: float) -> bool:
    """Return whether less than `least`, a share of the score, was expected whenever one of the last choices was made.

    Args:
        outlooks: of each trial, in order, `Choice.outlook` when it was chosen; None: it was chosen for another reason
            (the defaults, what fills the space, what was switched on).
        least: what has to be expected.
    """
    known = [outlook for outlook in outlooks if outlook is not None]
    return len(outlooks) >= SETTLED_FROM and len(known) >= IN_A_ROW and max(known[-IN_A_ROW:]) < least
