"""What other preferences would choose from a study's stored trials: its front, and its best trials by other weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage.measured import reference_of
from storage.metrics import Direction, metric
from storage.records import StudyRecord, TrialRecord
from tuner.errors import SettingError, UserError
from tuner.scoring.front import Point, Weighed, feasible, front, weighed
from tuner.scoring.objectives import parse_objective
from tuner.scoring.rounds import StudyRounds
from tuner.scoring.slo import parse_slo
from tuner.study.conclusion.reference import name_of
from tuner.study.specification.resolve_workload import make_goals


@dataclass(frozen=True)
class Front:
    """The front of a study.

    Attributes:
        metrics: by which trials are compared, at least two.
        reference: number of the trial to which ratios relate.
        reference_name: of it, for people.
        every: each feasible trial, by number.
    """

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
    names = list(dict.fromkeys(parse_objective(text).metric for text in metrics))
    if not metrics:
        names = [parse_objective(text).metric for text in study.premise["objectives"]]
    if not metrics and len(names) < 2:
        names = list(dict.fromkeys([*names, *(parse_slo(text).metric for text in study.premise["slos"])]))
    if len(names) < 2:
        rule = f"a front needs two metrics, and {names[0]} is one"
        raise SettingError("objective", None, rule, "give two or more, as {objective} p99_ttft_ms")
    _check_measured(study, trials, names)
    reference, name = _reference(study, trials)
    goals = make_goals(study.premise["objectives"], study.premise["slos"])
    rounds = StudyRounds.concluded(goals, trials, study.conclusion)
    return Front(tuple(names), reference, name, tuple(front(rounds, reference, names)))


def weighed_trials(study: StudyRecord, trials: Sequence[TrialRecord], objectives: Sequence[str]) -> ByWeights:
    """Return the feasible trials of a study by other objectives, from stored measurements; its SLOs still count.

    The success rate has its weight of every study.

    Raises:
        UserError: for a text that is no objective, a metric that no trial has, or without a feasible trial.
    """
    goals = make_goals(objectives, ())
    _check_measured(study, trials, [each.metric for each in goals.objectives])
    reference, name = _reference(study, trials)
    slos = make_goals(study.premise["objectives"], study.premise["slos"]).slos
    rounds = StudyRounds.concluded(replace(goals, slos=slos), trials, study.conclusion)
    found = weighed(rounds, reference)
    return ByWeights(tuple(map(str, goals.objectives)), reference, name, tuple(found))


def _check_measured(study: StudyRecord, trials: Sequence[TrialRecord], names: Sequence[str]) -> None:
    """Refuse metrics that no trial has."""
    outcomes = [trial.outcome for trial in trials if trial.outcome is not None and trial.outcome.succeeded]
    for name in names:
        if all(outcome.metric(name) is None for outcome in outcomes):
            rule = f"no trial of study {study.name!r} has this metric"
            raise SettingError("objective", name, rule, "see `tuner trials` for those that it has")


def _reference(study: StudyRecord, trials: Sequence[TrialRecord]) -> tuple[int, str]:
    """Return the number and the name of the reference: the study's, else the first feasible trial."""
    known = (study.conclusion or {}).get("reference")
    record = next((r for r in trials if r.number == known and not r.round), None) or reference_of(trials)
    if record is None:
        first = next(iter(feasible(trials)), None)
        record = next((r for r in trials if r.number == first and not r.round), None)
    if record is None or not feasible(trials):
        raise UserError(f"study {study.name!r} has no trial that meets its SLOs; see `tuner trials`")
    return record.number, f"{name_of(record)} (#{record.number})"
