"""The front of a study, and its best trials under other weights, from stored measurements.

Every trial is compared with the study's reference: in the rounds that measured both, else by the search's own
measurements. The two may have workloads of different sizes, so that values of one are not comparable with values of the
other; ratios to the reference are.

The interval of a ratio comes from these rounds. Without rounds it comes from the noise of repeats on one server: with
the pooled standard deviation s of the logarithms over all trials with repeats, f degrees of freedom, and n and m
repeats of the trial and of the reference,

    log ratio +- t(0.975, f) * s * sqrt(1 / n + 1 / m)

A trial is on the front if no other one is at least as good in every metric and better in one, by the ratios' point
estimates. Trials that failed or missed an SLO, in the search or in a round, are left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage.metrics import Direction, metric
from storage.records import Culprit, Repeat, TrialKind, TrialOutcome, TrialRecord
from tuner.scoring.compare import ALPHA, MeasuredRatio, Ratio, measured_ratios, t_quantile
from tuner.scoring.objectives import Objective
from tuner.scoring.score import finite_exp, score


@dataclass(frozen=True)
class Point:
    """A feasible trial relative to the reference.

    Attributes:
        number: of the trial.
        rounds: in how many rounds it was measured beside the reference; 0: by the search alone.
        metrics: values and ratio of each metric, see `MeasuredRatio`; `one` is the reference's value.
        on_front: whether no other trial dominates it.
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


def front(records: Sequence[TrialRecord], reference: int, names: Sequence[str]) -> list[Point]:
    """Return every feasible trial that has all metrics, by number, with a mark for those on the front.

    Args:
        records: every trial of the study.
        reference: number of the trial that the others are compared with.
        names: the metrics.
    """
    found, noise = [], {name: _noise(records, name) for name in names}
    for number, own in feasible(records).items():
        one, other, common = _compared(records, reference, own)
        ratios = measured_ratios(one, other, names, paired=True)
        if not common and number != reference:
            counts = (len(_repeats(one)), len(_repeats(other)))
            ratios = {name: _with_noise(each, noise[name], counts) for name, each in ratios.items()}
        if all(each.ratio is not None for each in ratios.values()):
            found.append(Point(number, len(common), ratios, on_front=False))
    costs = {point.number: [_cost(name, point) for name in names] for point in found}
    dominated = {a for a, mine in costs.items() if any(_dominates(other, mine) for other in costs.values())}
    return [Point(each.number, each.rounds, each.metrics, each.number not in dominated) for each in found]


def weighed(records: Sequence[TrialRecord], reference: int, objectives: Sequence[Objective]) -> list[Weighed]:
    """Return every feasible trial with its score under other weights, the best first.

    Args:
        records: every trial of the study.
        reference: number of the trial that scores 1.
        objectives: metrics with weights.
    """
    found = []
    for number, own in feasible(records).items():
        one, other, common = _compared(records, reference, own)
        pairs = [(_outcome(one, r), _outcome(other, r)) for r in common or [0]]
        scores = [score(_values(b, objectives), _values(a, objectives), objectives) for a, b in pairs]
        if all(scores):
            found.append(Weighed(number, _mean([math.log(each) for each in scores if each], len(common))))
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
    return not any(record.state == "infeasible" or _failed_itself(record) for record in own)


def _failed_itself(record: TrialRecord) -> bool:
    failure = None if record.outcome is None else record.outcome.failure
    return failure is not None and failure.culprit is Culprit.CONFIGURATION


def _compared(
    records: Sequence[TrialRecord], reference: int, own: Sequence[TrialRecord]
) -> tuple[list[TrialRecord], list[TrialRecord], list[int]]:
    """Return the records of the reference and of a trial that are comparable, and the rounds that measured both."""
    mine = [record for record in records if record.number == reference]
    worked = [{r.round for r in each if r.outcome is not None and r.outcome.succeeded} for each in (mine, own)]
    common = sorted((worked[0] & worked[1]) - {0})
    kept = {*common} if common else {0}
    return [r for r in mine if r.round in kept], [r for r in own if r.round in kept], common


def _repeats(records: Sequence[TrialRecord]) -> list[Repeat]:
    return [repeat for record in records if record.outcome is not None for repeat in record.outcome.repeats]


def _noise(records: Sequence[TrialRecord], name: str) -> tuple[float, int]:
    """Return the pooled standard deviation of a metric's logarithms over repeats of the search, and its degrees."""
    squares, degrees = 0.0, 0
    for record in records:
        values = [repeat.metrics.get(name) for repeat in _repeats([record])] if not record.round else []
        logs = [math.log(value) for value in values if value is not None and value > 0]
        if len(logs) > 1:
            squares, degrees = squares + statistics.variance(logs) * (len(logs) - 1), degrees + len(logs) - 1
    return (math.sqrt(squares / degrees) if degrees else 0.0), degrees


def _with_noise(each: MeasuredRatio, noise: tuple[float, int], counts: tuple[int, int]) -> MeasuredRatio:
    """Return a ratio with the interval that repeats of other trials give it; unchanged where none has repeats."""
    deviation, degrees = noise
    if not degrees or not all(counts) or each.ratio is None:
        return each
    half = t_quantile(1 - ALPHA / 2, degrees) * deviation * math.sqrt(1 / counts[0] + 1 / counts[1])
    return replace(each, low=each.ratio * finite_exp(-half), high=each.ratio * finite_exp(half))


def _outcome(records: Sequence[TrialRecord], round_: int) -> TrialOutcome | None:
    return next((record.outcome for record in records if record.round == round_), None)


def _values(outcome: TrialOutcome | None, objectives: Sequence[Objective]) -> dict[str, float | None]:
    return {each.metric: None if outcome is None else outcome.metric(each.metric) for each in objectives}


def _mean(logs: Sequence[float], rounds: int) -> Ratio:
    """Return the mean of logarithms over rounds as a ratio, with its interval from two rounds on."""
    mean = statistics.fmean(logs)
    if rounds < 2:
        return Ratio(finite_exp(mean), None, None, rounds)
    half = t_quantile(1 - ALPHA / 2, rounds - 1) * statistics.stdev(logs) / math.sqrt(rounds)
    return Ratio(finite_exp(mean), finite_exp(mean - half), finite_exp(mean + half), rounds)


def _cost(name: str, point: Point) -> float:
    """Return a number that is lower for a better value."""
    ratio = point.metrics[name].ratio
    assert ratio is not None
    return -ratio if metric(name).direction is Direction.MAXIMIZE else ratio


def _dominates(other: Sequence[float], mine: Sequence[float]) -> bool:
    pairs = list(zip(other, mine, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
