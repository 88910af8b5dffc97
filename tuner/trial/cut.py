"""Cut a trial short once it can no longer win, with a confidence of 97.5 % over all looks at its running requests.

Every loss is a sum over requests that is too large. With N offered requests, x_i the indicator "request i misses its
SLO" and a goodput of g needed within at least d seconds, the trial is lost if

    sum_i x_i > N - g d

and likewise for failures, for the requests above a percentile's bound, for a mean latency, and, in a closed loop of U
users, for the latencies: their sum is at most U times the duration. Each x_i is at least what is known of it now: a
request in flight has waited so long. docs/design/measurement.md gives the reasons.

- **Certain**: the known part of the sum is too large, whatever the other requests do.
- **Nearly certain**: the requests so far would be too unlikely if the whole sum were small enough. In blocks of
  consecutive requests, with the mean x_t of a block and the largest mean m_t that is left to the other requests,

      K = mean_b prod_t (1 + b (x_t / m_t - 1))

  is a supermartingale if the blocks are exchangeable (Waudby-Smith and Ramdas, "Estimating means of bounded random
  variables by betting", JRSS B 2024, sampling without replacement). By Ville's inequality K ever exceeds k / 0.025
  with a probability of at most 0.025 / k, for each of k such sums, however often one looks. What a trial needs to win
  only grows while it runs. A winner has it all at its end, so that K is smaller for what it needs earlier.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from records.metrics import PER_GPU, Direction, metric
from records.trials import Cut
from tuner.scoring.goals import Objective, Slo, distance_of, improvement
from tuner.specs import CutRule
from tuner.workloads.progress import LATEST_CUT, Bools, Floats, RunProgress, Seen
from tuner.workloads.results import LEAST_STABLE_REQUESTS, RequestSlo
from tuner.workloads.traffic import Closed, Constant, Gamma, Poisson, Traffic

ERROR = 0.025
"""Highest probability that a trial is cut which would not have been lost."""

_BETS = np.array([0.1, 0.3, 0.6, 0.9])
_BLOCKS = 20
"""Blocks of a whole run; a block is so long that neighbouring blocks share few requests in flight."""
_LEAST_RATIO = 0.01
"""A ratio of a maximised metric below this counts as this in a score, see `tuner.scoring.goals`."""
_LATENCY = re.compile(r"(mean|median|p\d+)_(ttft|tpot|e2el)_ms")
_JUST_MISSED = 1e-9


@dataclass(frozen=True)
class Sum:
    """A sum over some requests that must be at most `allowed`.

    Attributes:
        values: of the requests that have begun, in the order of their begin; lower bounds.
        allowed: the largest sum.
        offered: requests of the whole run that belong to the sum.
        skipped: requests at the beginning that say nothing of the others: the burst of a closed loop's users.
    """

    values: Floats
    allowed: float
    offered: int
    skipped: int

    def evidence(self) -> float:
        """Return the logarithm of the evidence that the sum is too large; infinite where that is certain."""
        if self.values.sum() > self.allowed:
            return math.inf
        left, count = self.allowed - float(self.values[: self.skipped].sum()), self.offered - self.skipped
        capital, most = np.ones(len(_BETS)), 1.0
        size = max(1, math.ceil(self.offered / _BLOCKS))
        for start in range(self.skipped, len(self.values) - size + 1, size):
            block = float(self.values[start : start + size].sum())
            if left > 0 and count > 0:
                capital = capital * (1 + _BETS * ((block / size) / (left / count) - 1))
                most = max(most, float(capital.mean()))
            left, count = left - block, count - size
        return math.log(most)


class TrialWatch:
    """Watches the requests of a trial's benchmark; see `Watch`."""

    def __init__(self, rule: CutRule, traffic: Traffic, gpus: int) -> None:
        """Prepare the watch.

        Args:
            rule: what the trial must reach.
            traffic: the workload.
            gpus: of the trial's server.
        """
        self._rule, self._gpus = rule, gpus
        self._slos = [each for each in rule.slos if _bounds_the_worse(each)]
        self.slos: Mapping[str, RequestSlo] = {name: each.request for name, each in traffic.slos.items()}
        self.users = traffic.users
        self._classes = list(traffic.sent_classes)
        self._bets = isinstance(traffic.arrivals, Closed | Poisson | Gamma | Constant)

    def look(self, progress: RunProgress, at_s: float) -> Cut | None:
        """Return why the trial is lost; None while it can still win."""
        metrics = _Metrics(progress, progress.seen(at_s), self._classes, self._gpus)
        if metrics.seen.ended.mean() > LATEST_CUT:
            return None
        return self._farther(metrics) if self._rule.score is None else self._lost_to(self._rule.score, metrics)

    def _farther(self, metrics: _Metrics) -> Cut | None:
        """Return why a trial is farther from the SLOs than the nearest one; what is certain alone counts."""
        least = {slo: slo.violation(best) for slo in self._slos if (best := metrics.best(slo.metric)) is not None}
        lost = {str(slo): violation for slo, violation in least.items() if violation > 0}
        if distance_of(lost.values()) <= self._rule.distance:
            return None
        return _cut(f"misses {', '.join(lost)} by more than the nearest trial", metrics, None, lost)

    def _lost_to(self, score: float, metrics: _Metrics) -> Cut | None:
        """Return why a trial misses an SLO or scores less than needed."""
        slos = [(slo, list(metrics.sums(slo.metric, slo.threshold))) for slo in self._slos]
        most = self._score_at_most(metrics)
        needed = [sums for each in self._rule.scored for sums in self._objective(each, score, metrics)]
        limit = math.log(max(1, sum(len(sums) for _, sums in slos) + len(needed)) / ERROR)
        lost = [slo for slo, sums in slos if any(self._lost(each, limit) for each in sums)]
        violations = {str(slo): max(_JUST_MISSED, slo.violation(metrics.best(slo.metric))) for slo in lost}
        loses_score = most < score or any(self._lost(each, limit) for each in needed)
        if not lost and not loses_score:
            return None
        bound = min(most, score) if loses_score else None
        why = [f"misses {slo}" for slo in lost]
        why += [] if bound is None else [f"score at most {bound:.3f}, {score:.3f} needed"]
        return _cut(", ".join(why), metrics, bound, violations)

    def _lost(self, each: Sum, limit: float) -> bool:
        evidence = each.evidence()
        return evidence > limit if self._bets else evidence == math.inf

    def _log_gains(self, metrics: _Metrics) -> list[tuple[Objective, float]]:
        """Return the highest possible logarithm of each objective's improvement over the reference."""
        gains = []
        for objective in self._rule.scored:
            reference = self._rule.reference.get(objective.metric)
            minimised = objective.direction is Direction.MINIMIZE
            if reference is None or (minimised and reference <= 0):  # no score has it
                continue
            best = metrics.best(objective.metric)
            unknown = best is None or (best if minimised else reference) <= 0
            ratio = None if best is None or unknown else improvement(objective, best, reference)
            gains.append((objective, math.inf if ratio is None else math.log(ratio)))
        return gains

    def _score_at_most(self, metrics: _Metrics) -> float:
        gains = self._log_gains(metrics)
        total = sum(objective.weight for objective, _ in gains)
        return math.exp(min(700.0, sum(each.weight * gain for each, gain in gains) / total)) if total else math.inf

    def _objective(self, objective: Objective, score: float, metrics: _Metrics) -> Iterator[Sum]:
        """Yield the sums that must stay small if an objective is to reach what the score needs of it.

        The others are at their best possible values.
        """
        gains = self._log_gains(metrics)
        reference = self._rule.reference.get(objective.metric)
        others = [(each.weight, gain) for each, gain in gains if each is not objective]
        if len(others) == len(gains) or not reference or math.inf in (gain for _, gain in others):
            return
        total = objective.weight + sum(weight for weight, _ in others)
        needed = total * math.log(score) - sum(weight * gain for weight, gain in others)
        log_ratio = needed / objective.weight
        if abs(log_ratio) > -math.log(_LEAST_RATIO):
            return
        ratio = math.exp(log_ratio)
        minimised = objective.direction is Direction.MINIMIZE
        yield from metrics.sums(objective.metric, reference / ratio if minimised else reference * ratio)


def _bounds_the_worse(slo: Slo) -> bool:
    """Return whether an SLO is lost by bad values: it bounds a latency from above, or a goodput from below."""
    return slo.op.startswith("<") == (metric(slo.metric).direction is Direction.MINIMIZE)


def _cut(why: str, metrics: _Metrics, bound: float | None, violations: Mapping[str, float]) -> Cut:
    due, offered = int(metrics.seen.begun.sum()), len(metrics.seen.begun)
    return Cut(f"{why}, after {due} of {offered} requests", metrics.seen.at_s, due, offered, bound, violations)


class _Metrics:
    """The best possible values of metrics, and what must hold for a metric to reach a value."""

    def __init__(self, progress: RunProgress, seen: Seen, classes: Sequence[str], gpus: int) -> None:
        self._progress, self.seen, self._classes, self._gpus = progress, seen, classes, gpus
        due = progress.due_s
        self._duration_s = max(seen.at_s, float(due.max()) if progress.users is None and len(due) else 0.0)
        self._order = np.argsort(seen.starts_s, kind="stable")[: int(seen.begun.sum())]

    def _groups(self, name: str) -> tuple[str, list[Bools]]:
        """Return a metric's name without its prefix, and the requests that it covers; several for the worst class."""
        prefix, _, base = name.rpartition(".")
        names = self._progress.names
        if not prefix:
            return base, [np.ones(len(names), dtype=bool)]
        if prefix == "worst":
            return base, [names == each for each in self._classes if (names == each).any()]
        return base, [names == prefix] if prefix in self._classes else []

    def best(self, name: str) -> float | None:
        """Return the best possible value of a metric; None for one without a bound."""
        base, groups = self._groups(name)
        values = [value for group in groups if (value := self._best(base, group)) is not None]
        if not values or len(values) != len(groups):
            return None
        return max(values) if metric(name).direction is Direction.MINIMIZE else min(values)

    def _best(self, base: str, group: Bools) -> float | None:
        latency = _LATENCY.fullmatch(base)
        if latency is not None:
            values, offered, _ = self._counted(latency[2], group)
            if latency[1] == "mean":
                return float(values.sum() / offered) if offered else None
            place = offered - _low(latency[1], offered)
            return float(np.sort(values)[-place]) if 0 < place <= len(values) else 0.0
        found = self._rate(base, group)
        if found is None:
            return None
        weights, total, is_share = found
        return float((total - weights.sum()) / (total if is_share else self._duration_s * self._divisor(base)))

    def _divisor(self, base: str) -> int:
        return self._gpus if base in PER_GPU else 1

    def _rate(self, base: str, group: Bools) -> tuple[Floats, float, bool] | None:
        """Return what is lost of each begun request, what all could bring, and whether the metric is a share of it."""
        base = PER_GPU.get(base, base)
        lost = {"goodput": self.seen.missed, "goodput_share": self.seen.missed, "output_goodput": self.seen.missed}
        kept = ("success_rate", "request_throughput", "output_throughput")
        bad = lost.get(base) if base not in kept else self.seen.failed
        if bad is None or not group.any():
            return None
        weights = self._progress.outputs if base.startswith("output") else np.ones(len(group))
        own = self._order[group[self._order]]
        return np.where(bad, weights, 0.0)[own], float(weights[group].sum()), base in ("goodput_share", "success_rate")

    def _counted(self, latency: str, group: Bools) -> tuple[Floats, int, int]:
        """Return the least latencies in ms that percentiles count, how many there will be at most, and `Sum.skipped`.

        They are those of the stable middle, see `tuner.workloads.results`.
        """
        window, values = self._progress.window, self.seen.least_ms[latency]
        if window is not None:
            group = group & (self._progress.due_s >= window.begin_s) & (self._progress.due_s <= window.end_s)
        before = 0
        if self._progress.users is not None and len(group) - self._progress.users >= LEAST_STABLE_REQUESTS:
            before = self._progress.users - 1
        early, own = self._order[:before], self._order[before:]
        skipped = 0 if before or window is not None else self._skipped(group)
        return values[own[group[own]]], int(group.sum() - group[early].sum()), skipped

    def _skipped(self, group: Bools) -> int:
        """Return how many requests of a group are among the first of each user, or among the first tenth."""
        first = max(self._progress.users or 0, math.ceil(0.1 * len(group)))
        return int(group[self._order[:first]].sum())

    def sums(self, name: str, needed: float) -> Iterator[Sum]:
        """Yield the sums that must stay small for a metric to reach a value; none for a metric without a bound."""
        base, groups = self._groups(name)
        for group in groups:
            yield from self._sums(base, group, needed)

    def _sums(self, base: str, group: Bools, needed: float) -> Iterator[Sum]:
        latency = _LATENCY.fullmatch(base)
        if latency is not None:
            values, offered, skipped = self._counted(latency[2], group)
            if latency[1] == "mean":
                yield Sum(values, needed * offered, offered, skipped)
            elif offered:
                above = (values > needed).astype(float)
                yield Sum(above, offered - _low(latency[1], offered) - 1, offered, skipped)
            return
        found = self._rate(base, group)
        if found is None:
            return
        weights, total, is_share = found
        brought = needed * (total if is_share else self._duration_s * self._divisor(base))
        offered, users = int(group.sum()), self._progress.users
        yield Sum(weights, total - brought + 1e-9 * total, offered, self._skipped(group))
        if users is not None and group.all() and not is_share and needed > 0:
            latencies = self.seen.least_ms["e2el"][self._order]
            longest_s = total / (needed * self._divisor(base))
            yield Sum(latencies, 1000.0 * users * longest_s, offered, self._skipped(group))


def _low(statistic: str, count: int) -> int:
    """Return the lower one of the two places, from 0, between which a percentile of sorted values is interpolated."""
    percentile = 50 if statistic == "median" else int(statistic[1:])
    return math.floor((count - 1) * percentile / 100)
