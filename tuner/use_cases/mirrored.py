"""Two servers under the same requests: how long their answers take relative to each other, and what each fails.

A pair of runs sends the same requests to A and to B. With e the end-to-end latency of a request, a run counts as

    y = mean of ln e over the requests that both completed

and B's speed relative to A's is the exponential of the mean of y_A - y_B over the pairs, with the interval of
`tuner.scoring.compare`: pairs are rounds with two configurations. The requests of a pair are the same, so that their
lengths do not count.

A request that only one of the two completed is discordant. If failures were equally likely on both, B would have at
least b of the n discordant requests with the probability

    sum over k from b to n of C(n, k) / 2^n

Source: sign test; McNemar, "Note on the sampling error of the difference between correlated proportions or
percentages", Psychometrika 12 (1947).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.scoring.change import EQUAL, ERROR, Change, change_of
from tuner.scoring.compare import Ratio, paired_ratio, residual_noise
from tuner.workloads.results import RequestRecord

MEASURES = ("e2el", "ttft", "tpot")
"""Latencies that are shown of two servers, as `RequestRecord.latencies_ms` names them; the first decides."""


@dataclass(frozen=True)
class Pair:
    """The same requests, sent to A and to B."""

    a: Sequence[RequestRecord]
    b: Sequence[RequestRecord]

    def levels(self, measure: str) -> tuple[float, float] | None:
        """Return y of A and of B; None if no request was completed by both."""
        both = [(one, other) for one, other in zip(self.a, self.b, strict=True) if one.completed and other.completed]
        found = [(one.latencies_ms().get(measure), other.latencies_ms().get(measure)) for one, other in both]
        logs = [(math.log(one), math.log(other)) for one, other in found if one and other and min(one, other) > 0]
        if not logs:
            return None
        return statistics.fmean(one for one, _ in logs), statistics.fmean(other for _, other in logs)

    @property
    def discordant(self) -> tuple[int, int]:
        """The requests that only A failed, and those that only B failed."""
        found = [(one.completed, other.completed) for one, other in zip(self.a, self.b, strict=True)]
        return found.count((False, True)), found.count((True, False))


@dataclass(frozen=True)
class Mirrored:
    """Pairs of runs, and the number of looks at them after which they may end."""

    pairs: Sequence[Pair]
    looks: int
    margin: float

    @property
    def requests(self) -> int:
        """The requests that were sent to both servers together."""
        return sum(len(pair.a) + len(pair.b) for pair in self.pairs)

    def speed(self, measure: str) -> Ratio | None:
        """Return B's speed relative to A's, above 1 if B is faster; None without a request that both completed."""
        levels = [pair.levels(measure) for pair in self.pairs]
        known = [each for each in levels if each is not None]
        if not known:
            return None
        cells = {(arm, place): each[arm] for place, each in enumerate(known) for arm in (0, 1)}
        return paired_ratio([a - b for a, b in known], residual_noise(cells), self.looks)

    @property
    def discordant(self) -> tuple[int, int]:
        """The requests that only A failed, and those that only B failed."""
        found = [pair.discordant for pair in self.pairs]
        return sum(a for a, _ in found), sum(b for _, b in found)

    @property
    def failures(self) -> Change:
        """What the failures say of B: worse or better beyond chance and margin, else that nothing changed."""
        a, b = self.discordant
        share = abs(a - b) / max(sum(len(pair.a) for pair in self.pairs), 1)
        if share <= self.margin or _sign_test(max(a, b), a + b) > ERROR / self.looks:
            return Change.HOLDS
        return Change.WORSE if b > a else Change.BETTER

    @property
    def verdict(self) -> Change:
        """What became of B: the failures decide before the speed."""
        failures = self.failures
        return failures if failures is Change.WORSE else change_of(self.speed(MEASURES[0]), EQUAL, self.margin)


def _sign_test(most: int, count: int) -> float:
    """Return the probability of at least `most` of `count` discordant requests on one side."""
    return math.fsum(math.comb(count, each) / 2.0**count for each in range(most, count + 1))
