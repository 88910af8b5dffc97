"""Compare two servers' answers to the same questions: flips, an exact interval, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy.special import betaincinv

from tuner.confidence import CONFIDENCE


class Kept(StrEnum):
    """The verdict on the answers of a candidate."""

    KEPT = "kept"
    LOST = "lost"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Pairs:
    """The questions by who answers them right: `both`, `lost` (only the reference), `gained` (only the candidate)."""

    both: int
    lost: int
    gained: int
    neither: int

    @property
    def questions(self) -> int:
        """The number of questions."""
        return self.both + self.lost + self.gained + self.neither

    @property
    def flips(self) -> int:
        """The questions on which the two differ."""
        return self.lost + self.gained

    @property
    def reference(self) -> float:
        """The reference's accuracy."""
        return (self.both + self.lost) / self.questions

    @property
    def candidate(self) -> float:
        """The candidate's accuracy."""
        return (self.both + self.gained) / self.questions

    @property
    def quality(self) -> float:
        """The candidate's accuracy relative to the reference's."""
        return self.candidate / self.reference

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of `quality`, with a coverage of at least 95 %: docs/design/quality.md.

        It is 1 + (g - l) / reference, where l and g are the shares of lost and gained questions. With the share of
        flips f = l + g and the share w of lost questions among the flips, g - l = f (1 - 2 w). Both have
        Clopper-Pearson intervals of coverage 97.5 %.
        """
        least, most = clopper_pearson(self.flips, self.questions, (1 - CONFIDENCE) / 2)
        fewest, largest = clopper_pearson(self.lost, self.flips, (1 - CONFIDENCE) / 2)
        low, high = 1 - 2 * largest, 1 - 2 * fewest
        differences = low * (most if low < 0 else least), high * (most if high > 0 else least)
        return max(0.0, 1 + differences[0] / self.reference), 1 + differences[1] / self.reference

    def verdict(self, least: float) -> Kept:
        """Return whether the quality is at least `least`: undecided while the interval contains it."""
        low, high = self.interval
        if low >= least:
            return Kept.KEPT
        return Kept.LOST if high < least else Kept.UNDECIDED


def pair(reference: Sequence[bool], candidate: Sequence[bool]) -> Pairs:
    """Count the questions by who answers them right.

    Raises:
        ValueError: if the numbers of questions differ, or there is none.
    """
    if len(reference) != len(candidate) or not reference:
        raise ValueError(f"{len(reference)} and {len(candidate)} answers cannot be paired")
    both = sum(r and c for r, c in zip(reference, candidate, strict=True))
    lost, gained = sum(reference) - both, sum(candidate) - both
    return Pairs(both, lost, gained, len(reference) - both - lost - gained)


def clopper_pearson(successes: int, trials: int, error: float) -> tuple[float, float]:
    """Return the exact interval of a binomial probability; (0, 1) without a trial.

    Args:
        successes: of the trials.
        trials: independent ones.
        error: the share of intervals that may miss the probability, half of it on each side.
    """
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, error / 2))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1 - error / 2))
    return low, high
