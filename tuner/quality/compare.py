"""Compare two servers: flips of their answers with an exact interval, and their token probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from scipy.special import betaincinv

from tuner.confidence import CONFIDENCE


class AnswersVerdict(StrEnum):
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

    def verdict(self, least: float) -> AnswersVerdict:
        """Return whether the quality is at least `least`: undecided while the interval contains it."""
        low, high = self.interval
        if low >= least:
            return AnswersVerdict.KEPT
        return AnswersVerdict.LOST if high < least else AnswersVerdict.UNDECIDED


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


Position: TypeAlias = Sequence[tuple[int, float]]
"""A server's most likely tokens at one position of a text, the most likely first: token id and log-probability."""

BROKEN_AGREEMENT = 0.7
BROKEN_KL = 0.5
"""A candidate is broken if fewer of its top tokens agree, or its mean KL divergence (in nats) is larger."""

_LEAST = 1e-12


@dataclass(frozen=True)
class Tripwire:
    """The comparison over all positions: the share with the same top token, and the mean KL divergence in nats."""

    positions: int
    agreement: float
    kl: float

    @property
    def broken(self) -> bool:
        """Whether the candidate's distribution is another one; a small difference has no meaning."""
        return self.agreement < BROKEN_AGREEMENT or self.kl > BROKEN_KL


def compare_positions(reference: Sequence[Position], candidate: Sequence[Position]) -> Tripwire:
    """Compare two servers.

    Raises:
        ValueError: if the numbers of positions differ, as with two tokenizers, or there is none.
    """
    if len(reference) != len(candidate) or not reference:
        raise ValueError(f"{len(reference)} and {len(candidate)} positions cannot be compared")
    same = sum(r[0][0] == c[0][0] for r, c in zip(reference, candidate, strict=True))
    total = math.fsum(kl_divergence(r, c) for r, c in zip(reference, candidate, strict=True))
    return Tripwire(len(reference), same / len(reference), total / len(reference))


def kl_divergence(reference: Position, candidate: Position) -> float:
    """Return the least KL divergence, in nats, that is consistent with the top tokens of both.

    The tokens are merged into classes, which never increases the divergence: each token that both report (K), those
    that only the reference reports (A), and all others (R):

        KL = sum over K of p ln(p / q) + p_A ln(p_A / q_A) + p_R ln(p_R / q_R)

    p_A is known and p_R = 1 - p_K - p_A. The candidate does not report q_A, but no token of A has more than its least
    likely reported token has: q_A <= |A| q_min. Of the possible q_A, the one that minimises KL is used, and
    q_R = 1 - q_K - q_A.
    """
    p = {token: math.exp(value) for token, value in reference}
    q = {token: math.exp(value) for token, value in candidate}
    shared = p.keys() & q.keys()
    p_shared, q_shared = math.fsum(p[t] for t in shared), math.fsum(q[t] for t in shared)
    p_only = math.fsum(p[t] for t in p.keys() - shared)
    p_rest, q_left = max(0.0, 1 - p_shared - p_only), max(0.0, 1 - q_shared)
    bound = len(p.keys() - shared) * min(q.values())
    balanced = q_left * p_only / (p_only + p_rest) if p_only else 0.0
    q_only = min(bound, balanced)
    terms = [_term(p[token], q[token]) for token in shared]
    return max(0.0, math.fsum([*terms, _term(p_only, q_only), _term(p_rest, q_left - q_only)]))


def _term(p: float, q: float) -> float:
    return p * math.log(p / max(q, _LEAST)) if p > _LEAST else 0.0
