"""Compare two servers' token probabilities over the same texts: agreement of the top token, and mean KL divergence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

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
