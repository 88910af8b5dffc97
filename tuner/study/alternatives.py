"""Beside a study's conclusion: its front, its best by other weights, and the trials nearest to infeasible SLOs.

The distance of a configuration from meeting the SLOs is the sum of log(1 + violation) over those that it misses, with
the excess relative to the bound as the violation (`Slo.violation`). Distances within `ALIKE` of the smallest count as
equal, because an overloaded server's waiting times say little; of those, the highest score is nearest.

The intervals are of the mean over the rounds. With y the logarithm of a measurement (the value itself where one is not
positive), their variance is pooled over the k configurations with R rounds each:

    s^2 = sum over configurations and rounds of (y - mean of y for the configuration)^2 / (k (R - 1))

and the interval is mean of y +- t(0.975, k (R - 1)) * s / sqrt(R).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from records.measured import reference_of, search_trial
from records.metrics import Direction, metric
from records.trials import StudyRecord, TrialKind, TrialRecord
from tuner.errors import SettingError, UserError, see_trials
from tuner.scoring.compare import pooled_noise
from tuner.scoring.front import Point, Weighed, feasible, front, weighed
from tuner.scoring.goals import FAILED, Goals, Slo, distance_of, finite_exp, parse_objective
from tuner.scoring.rounds import Rounds, StudyRounds
from tuner.study.conclusion import Nearest, SloDistance, name_of
from tuner.study.specification.resolve_workload import make_goals


@dataclass(frozen=True)
class Front:
    """The front of a study: `every` feasible trial, by number, relative to `reference` in two metrics or more."""

    metrics: tuple[str, ...]
    reference: int
    reference_name: str
    every: tuple[Point, ...]

    @property
    def points(self) -> list[Point]:
        """The trials of the front, the best in the first metric first."""
        name = self.metrics[0]
        sign = -1.0 if metric(name).direction is Direction.MAXIMIZE else 1.0
        return sorted((p for p in self.every if p.on_front), key=lambda p: sign * (p.metrics[name].ratio or 0.0))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        points = [point.to_dict() for point in self.every]
        return {"metrics": list(self.metrics), "reference": self.reference, "points": points}


@dataclass(frozen=True)
class ByWeights:
    """Trials by other objectives, the best first; `objectives` are these as text, see `Front` for the reference."""

    objectives: tuple[str, ...]
    reference: int
    reference_name: str
    trials: tuple[Weighed, ...]


def front_of_study(study: StudyRecord, trials: Sequence[TrialRecord], metrics: Sequence[str] = ()) -> Front:
    """Return the front of a study.

    Args:
        study: with its objectives and SLOs.
        trials: all of them.
        metrics: of the front, as objectives whose weights do not count; by default the study's objectives, and the
            metrics of its SLOs where it has a single objective.

    Raises:
        UserError: for an unknown metric, with fewer than two, or if no trial can be on the front.
    """
    goals = make_goals(study.premise["objectives"], study.premise["slos"])
    names = list(dict.fromkeys(parse_objective(text).metric for text in metrics))
    if not metrics:
        names = goals.names if len(goals.objectives) < 2 else [each.metric for each in goals.objectives]
    if len(names) < 2:
        rule = f"a front needs two metrics, and {names[0]} is one"
        raise SettingError("objective", None, rule, "give two or more, as {objective} p99_ttft_ms")
    _check_measured(study, trials, names)
    reference, name = _reference(study, trials)
    rounds = StudyRounds.concluded(goals, trials, study.conclusion)
    return Front(tuple(names), reference, name, tuple(front(rounds, reference, names)))


def weighed_trials(study: StudyRecord, trials: Sequence[TrialRecord], objectives: Sequence[str]) -> ByWeights:
    """Return the feasible trials of a study by other objectives, from stored measurements; its SLOs still count.

    The success rate has its weight of every study.

    Raises:
        UserError: for a text that is no objective, a metric that no trial has, or without a feasible trial.
    """
    slos = make_goals(study.premise["objectives"], study.premise["slos"]).slos
    goals = replace(make_goals(objectives, ()), slos=slos)
    _check_measured(study, trials, [each.metric for each in goals.objectives])
    reference, name = _reference(study, trials)
    rounds = StudyRounds.concluded(goals, trials, study.conclusion)
    found = weighed(rounds, reference)
    return ByWeights(tuple(map(str, goals.objectives)), reference, name, tuple(found))


def _check_measured(study: StudyRecord, trials: Sequence[TrialRecord], names: Sequence[str]) -> None:
    """Refuse metrics that no trial has."""
    outcomes = [trial.outcome for trial in trials if trial.outcome is not None and trial.succeeded]
    for name in names:
        if all(outcome.metric(name) is None for outcome in outcomes):
            rule = f"no trial of study {study.name!r} has this metric"
            raise SettingError("objective", name, rule, f"{see_trials(study.name)} for those that it has")


def _reference(study: StudyRecord, trials: Sequence[TrialRecord]) -> tuple[int, str]:
    """Return the number and the name of the reference: the study's, else the first feasible trial."""
    known = (study.conclusion or {}).get("reference")
    record = search_trial(trials, known) or reference_of(trials)
    if record is None:
        first = next(iter(feasible(trials)), None)
        record = search_trial(trials, first)
    if record is None or not feasible(trials):
        raise UserError(f"study {study.name!r} has no trial that meets its SLOs; {see_trials(study.name)}")
    return record.number, f"{name_of(record)} (#{record.number})"


ALIKE = 1.1
"""Distances to the SLOs up to this multiple of the smallest one count as equal."""


def without_slos(goals: Goals) -> Goals:
    """Return the goals without SLOs, by which a missed SLO disqualifies no finalist."""
    return replace(goals, slos=())


def nearest_trials(records: Sequence[TrialRecord], count: int) -> list[TrialRecord]:
    """Return the trials of the search that are nearest to meeting the SLOs, the nearest first; ties by the score."""
    kinds = (TrialKind.SEARCH, TrialKind.RECIPE, TrialKind.ENQUEUED)
    found = [(_distance_of_trial(record), record) for record in records if record.round == 0 and record.kind in kinds]
    known = [(distance, record) for distance, record in found if distance is not None]
    limit = ALIKE * min((distance for distance, _ in known), default=0.0)
    known.sort(key=lambda pair: (max(pair[0], limit), -(pair[1].score or 0.0), pair[1].number))
    return [record for _, record in known[:count]]


def _distance_of_trial(record: TrialRecord) -> float | None:
    """Return a trial's distance; None for one that failed or lacks an objective."""
    verdict = record.verdict
    if not record.succeeded or verdict is None or verdict.constraints.get(FAILED):
        return None
    return distance_of(verdict.constraints.values())


def nearest_of(goals: Goals, records: Sequence[TrialRecord], label: str) -> Nearest | None:
    """Return the configuration of some rounds that is nearest to meeting the SLOs; None if each failed in a round."""
    rounds = Rounds.of(without_slos(goals), records, label)
    numbers = [n for n in dict.fromkeys(n for n, _ in rounds.cells) if n in rounds.complete()]
    if not numbers:
        return None
    distances = {number: [_distance(slo, rounds, numbers, number, records) for slo in goals.slos] for number in numbers}
    sums = {number: distance_of(each.excess for each in listed) for number, listed in distances.items()}
    alike = [number for number in numbers if sums[number] <= ALIKE * min(sums.values())]
    every = StudyRounds(rounds.goals, [*rounds.cells.values()])
    scores = {number: every.score(number, alike[0]) for number in alike}
    nearest = max(alike, key=lambda number: score.ratio if (score := scores[number]) is not None else 1.0)
    return Nearest(nearest, tuple(sorted(distances[nearest], key=lambda each: -each.excess)))


def _distance(
    slo: Slo, rounds: Rounds, numbers: Sequence[int], number: int, records: Sequence[TrialRecord]
) -> SloDistance:
    """Return how far one configuration is from an SLO."""
    values = {each: _values(rounds, each, slo.metric) for each in numbers}
    known = {each: listed for each, listed in values.items() if listed}
    value = low = high = None
    if number in known:
        value, low, high = mean_interval(known, number)
    best, trial = _best(slo, records)
    return SloDistance(str(slo), value, low, high, slo.violation(value), best, trial, slo.met(best))


def _values(rounds: Rounds, number: int, metric: str) -> list[float]:
    """Return the values of a metric in all rounds; empty if one lacks it."""
    values = [outcome.metric(metric) for outcome in rounds.outcomes(number)]
    present = [value for value in values if value is not None]
    return present if len(present) == len(rounds.numbers) else []


def mean_interval(values: Mapping[int, Sequence[float]], number: int) -> tuple[float, float | None, float | None]:
    """Return the mean of a configuration's values, one a round, with its 95 % interval; geometric where it can be."""
    positive = all(value > 0 for listed in values.values() for value in listed)
    scaled = {each: [math.log(v) if positive else v for v in listed] for each, listed in values.items()}
    back = finite_exp if positive else float
    mean = statistics.fmean(scaled[number])
    noise = pooled_noise(scaled.values())
    if noise is None:
        return back(mean), None, None
    half = noise.half_width(1 / len(scaled[number]))
    return back(mean), back(mean - half), back(mean + half)


def _best(slo: Slo, records: Sequence[TrialRecord]) -> tuple[float | None, int | None]:
    """Return the best value of an SLO's metric in the search, and its trial."""
    sign = -1.0 if slo.op.startswith(">") else 1.0
    outcomes = [(r.number, r.outcome) for r in records if not r.round and r.kind is not TrialKind.CAPACITY]
    measured = [(n, outcome.metric(slo.metric)) for n, outcome in outcomes if outcome is not None and outcome.succeeded]
    known = [(sign * value, number) for number, value in measured if value is not None]
    return (sign * min(known)[0], min(known)[1]) if known else (None, None)
