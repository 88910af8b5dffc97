"""Whether a ratio of today is still the one that was promised: the rule of every recheck and canary.

A promise is an interval [p, q] of a ratio, such as the gain of a study's winner over its reference, or [1, 1] for two
servers that should be equal. Today's rounds give a ratio with the interval [l, h] (`tuner.scoring.compare`). With the
margin m, the smallest change that matters,

    better        l > q  and  h > q (1 + m)
    holds         l >= p (1 - m), and not better
    worse         h < p  and  l < p (1 - m)
    inconclusive  otherwise: more rounds are needed

The interval is two-sided at 95 %, and each number of rounds after which the rounds may end has an equal share of the
error (`tuner.scoring.sequential.looks`). So each of these has a probability of at most 2.5 %: `worse` of a ratio that
is not below p, `better` of one that is not above q, and `holds` of one below p (1 - m).
Source: a test of superiority and of non-inferiority on one interval; e.g. Wellek, Testing Statistical Hypotheses of
Equivalence and Noninferiority, chapter 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tuner.scoring.compare import Ratio

MARGIN = 0.03
"""The smallest change that matters, unless another one is given, as a share."""

ERROR = 0.025
"""Probability of each wrong verdict at most, see the module's docstring."""


class Change(StrEnum):
    """What became of a promise."""

    HOLDS = "holds"
    BETTER = "better"
    WORSE = "worse"
    INCONCLUSIVE = "inconclusive"

    @property
    def is_known(self) -> bool:
        """Whether the rounds can end."""
        return self is not Change.INCONCLUSIVE


_GRAVITY = (Change.WORSE, Change.INCONCLUSIVE, Change.HOLDS, Change.BETTER)


def gravest(changes: Iterable[Change]) -> Change:
    """Return the gravest of some verdicts; `inconclusive` of none."""
    found = set(changes)
    return next((each for each in _GRAVITY if each in found), Change.INCONCLUSIVE)


@dataclass(frozen=True)
class Promise:
    """The interval of a ratio, and the ratio itself.

    Raises:
        ValueError: unless 0 < low <= ratio <= high.
    """

    ratio: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Check the order of the ends."""
        if not 0 < self.low <= self.ratio <= self.high:
            raise ValueError(f"a promise needs 0 < low <= ratio <= high, got {self}")

    @classmethod
    def of(cls, ratio: Mapping[str, Any]) -> Promise:
        """Return the promise of a stored ratio; without an interval, the ratio alone is promised."""
        value = float(ratio["ratio"])
        low, high = (value if ratio.get(end) is None else float(ratio[end]) for end in ("low", "high"))
        return cls(value, min(low, value), max(high, value))


_EXACT = 1e-9
"""Difference to 1 of a ratio without an interval, up to which the measurements of all rounds are the same."""

EQUAL = Promise(1.0, 1.0, 1.0)
"""What is promised of two servers that should be equal."""


def change_of(today: Ratio | None, promised: Promise, margin: float = MARGIN) -> Change:
    """Return the verdict on a promise; `inconclusive` without a ratio or an interval.

    Args:
        today: the ratio of today's rounds.
        promised: what it should be.
        margin: the smallest change that matters, as a share.
    """
    if today is None:
        return Change.INCONCLUSIVE
    if today.rounds > 1 and today.low is None and abs(today.ratio - 1.0) <= _EXACT:
        today = Ratio(1.0, 1.0, 1.0, today.rounds)
    if today.low is None or today.high is None:
        return Change.INCONCLUSIVE
    if today.low > promised.high and today.high > promised.high * (1 + margin):
        return Change.BETTER
    if today.low >= promised.low * (1 - margin):
        return Change.HOLDS
    return Change.WORSE if today.high < promised.low else Change.INCONCLUSIVE
