"""Reports the outcome of a trial to a sampler, as the sampler can read it."""

import math
import warnings
from collections.abc import Mapping, Sequence

import optuna
from optuna.study import Study, StudyDirection
from optuna.trial import Trial, TrialState

from benchmarks.search.problems.problem import Outcome, Problem
from benchmarks.search.samplers.compared import ComparedSampler
from tuner.scoring.goals import FAILED, FAILED_VIOLATION

LOWEST_SCORE = 1e-9
"""Replaces a score of 0, which has no logarithm."""


def make_study(problem: Problem, sampler: ComparedSampler, seed: int) -> Study:
    """Return an empty study in memory with the sampler."""
    if sampler.optimises == "score":
        directions = [StudyDirection.MAXIMIZE]
    else:
        directions = [StudyDirection[objective.direction.name] for objective in problem.objectives]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(directions=directions, sampler=sampler.make(problem, seed))


class Reporter:
    """Reports outcomes to one study."""

    def __init__(self, study: Study, sampler: ComparedSampler, constraint_names: Sequence[str]) -> None:
        self._study = study
        self._sampler = sampler
        self._worst = _WorstValues(constraint_names)

    def report(self, trial: Trial, outcome: Outcome) -> None:
        """Report the outcome of a trial."""
        if outcome.score is not None:
            trial.set_user_attr("score", outcome.score)
        if outcome.values is None:
            self._report_crash(trial, outcome)
            return
        constraints = {**outcome.constraints, FAILED: 0.0}
        values = list(outcome.values)
        if self._sampler.optimises == "score":
            values = [math.log(max(outcome.score or 0.0, LOWEST_SCORE))]
        self._worst.update(values, constraints)
        if self._sampler.reads_constraints:
            _set_constraints(trial, constraints)
        self._study.tell(trial, values)

    def _report_crash(self, trial: Trial, outcome: Outcome) -> None:
        """Report a crash; `worst` works as `constraint` until a trial has values."""
        if self._sampler.crash_report == "fail":
            self._study.tell(trial, state=TrialState.FAIL)
        elif self._sampler.crash_report == "worst" and self._worst.ranges is not None:
            _set_constraints(trial, {**self._worst.constraints, FAILED: FAILED_VIOLATION})
            self._study.tell(trial, self._worst.values(self._study.directions))
        else:
            _set_constraints(trial, outcome.constraints)
            self._study.tell(trial, state=TrialState.PRUNED)


def _set_constraints(trial: Trial, constraints: Mapping[str, float]) -> None:
    for name, value in constraints.items():
        trial.set_constraint(name, value)


class _WorstValues:
    """The worst values and constraints that were measured so far.

    Attributes:
        ranges: the lowest and highest value of each objective; None before the first measurement.
        constraints: the highest value of each constraint.
    """

    def __init__(self, constraint_names: Sequence[str]) -> None:
        self.ranges: list[tuple[float, float]] | None = None
        self.constraints: dict[str, float] = dict.fromkeys(constraint_names, 0.0)

    def update(self, values: list[float], constraints: Mapping[str, float]) -> None:
        """Include a measured trial."""
        ranges = self.ranges or [(value, value) for value in values]
        self.ranges = [(min(low, value), max(high, value)) for (low, high), value in zip(ranges, values, strict=True)]
        for name, value in constraints.items():
            self.constraints[name] = max(value, self.constraints.get(name, 0.0))

    def values(self, directions: list[StudyDirection]) -> list[float]:
        """Return the worst value of each objective."""
        assert self.ranges is not None
        pairs = zip(self.ranges, directions, strict=True)
        return [low if direction is StudyDirection.MAXIMIZE else high for (low, high), direction in pairs]
