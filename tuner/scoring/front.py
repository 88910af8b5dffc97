"""The front of a study, and its best trials under other weights, from stored measurements.

Every trial is compared with the study's reference by the method of `tuner.scoring.compare`: in the rounds that measured
both, else by the benchmarks of the search. The two may have workloads of different sizes, so that values of one are not
comparable with values of the other; ratios to the reference are.

A trial is on the front if no other one is at least as good in every metric and better in one, by the ratios' point
estimates. Trials that failed or missed an SLO, in the search or in a round, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from records.measured import common_rounds
from records.metrics import Direction, metric
from records.trials import Culprit, TrialKind, TrialOutcome, TrialRecord
from tuner.scoring.compare import MeasuredRatio, Ratio
from tuner.scoring.goals import score
from tuner.scoring.rounds import StudyRounds


@dataclass(frozen=True)
class Point:
    """A feasible trial relative to the reference, whose value of a metric is the `one` of `MeasuredRatio`.

    `rounds` is in how many rounds both were measured, 0: by the search alone. No trial dominates one that is
    `on_front`.
    """

    number: int
    rounds: int
    metrics: Mapping[str, MeasuredRatio]
    on_front: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON, with ratios to four digits."""
        return {
            "number": self.number,
            "rounds": self.rounds,
            "on_front": self.on_front,
            "metrics": {
                name: {key: _rounded(getattr(each, key)) for key in ("ratio", "low", "high")}
                for name, each in self.metrics.items()
            },
        }


@dataclass(frozen=True)
class Weighed:
    """A trial and its score under given weights, relative to the reference; `score.rounds` 0: by the search alone."""

    number: int
    score: Ratio


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def front(rounds: StudyRounds, reference: int, names: Sequence[str]) -> list[Point]:
    """Return every feasible trial that has all metrics, by number, with a mark for those on the front."""
    found = []
    for number in feasible(rounds.records):
        ratios = {name: rounds.beside(name, number, reference) for name in names}
        if all(each.ratio is not None for each in ratios.values()):
            common = len(common_rounds(rounds.records, number, reference))
            found.append(Point(number, common, ratios, on_front=False))
    costs = {point.number: [_cost(name, point) for name in names] for point in found}
    dominated = {a for a, mine in costs.items() if any(dominates(other, mine) for other in costs.values())}
    return [Point(each.number, each.rounds, each.metrics, each.number not in dominated) for each in found]


def weighed(rounds: StudyRounds, reference: int) -> list[Weighed]:
    """Return every feasible trial with its score by the goals of `rounds`, the best first."""
    found = []
    for number, own in feasible(rounds.records).items():
        ratio = Ratio(1.0, None, None, 0) if number == reference else rounds.score(number, reference)
        if ratio is None:
            ratio = _search_score(rounds, own, [r for r in rounds.records if r.number == reference])
        if ratio is not None:
            found.append(Weighed(number, ratio))
    return sorted(found, key=lambda each: -each.score.ratio)


def feasible(records: Sequence[TrialRecord]) -> dict[int, list[TrialRecord]]:
    """Return the records of each trial that met every SLO in the search and in all of its rounds, by its number."""
    found: dict[int, list[TrialRecord]] = {}
    for record in sorted(records, key=lambda record: (record.number, record.round)):
        found.setdefault(record.number, []).append(record)
    return {number: own for number, own in found.items() if _is_feasible(own)}


def _is_feasible(own: Sequence[TrialRecord]) -> bool:
    search = next((record for record in own if not record.round), None)
    if search is None or search.state != "ok" or search.kind is TrialKind.CAPACITY:  # of another request rate
        return False
    faults = (record.failure.culprit for record in own if record.failure is not None)
    return Culprit.CONFIGURATION not in faults and not any(record.state == "infeasible" for record in own)


def _search_score(rounds: StudyRounds, own: Sequence[TrialRecord], other: Sequence[TrialRecord]) -> Ratio | None:
    """Return the ratio of a trial's score to that of the reference in the search."""
    one, two = _searched(own), _searched(other)
    if one is None or two is None:
        return None
    value = score(rounds.goals.metrics(one), rounds.goals.metrics(two), rounds.goals.scored)
    return Ratio(value, None, None, 0) if value else None


def _searched(records: Sequence[TrialRecord]) -> TrialOutcome | None:
    return next((record.outcome for record in records if not record.round), None)


def _cost(name: str, point: Point) -> float:
    """Return a number that is lower for a better value."""
    ratio = point.metrics[name].ratio
    assert ratio is not None
    return -ratio if metric(name).direction is Direction.MAXIMIZE else ratio


def dominates(other: Sequence[float], mine: Sequence[float]) -> bool:
    """Return whether costs are at most as high in every value as others, and lower in one."""
    pairs = list(zip(other, mine, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
