"""The measurements of the finalists' rounds: who is disqualified, and the ratios of the others to the defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage.records import TrialRecord
from tuner.scoring.compare import Ratio, compare, residual_squares
from tuner.scoring.goals import Goals
from tuner.scoring.score import log_scores


@dataclass(frozen=True)
class Rounds:
    """The finished measurements of one confirmation.

    Args:
        goals: objectives, SLOs and weights.
        numbers: the rounds in which at least one finalist was measured, ascending.
        cells: the measurements by trial number and round.
    """

    goals: Goals
    numbers: tuple[int, ...]
    cells: Mapping[tuple[int, int], TrialRecord]

    @classmethod
    def of(cls, goals: Goals, records: Sequence[TrialRecord], label: str | None) -> Rounds:
        """Return the rounds among a study's records that belong to the confirmation with this name."""
        cells = {(r.number, r.round): r for r in records if r.round and r.label == label and r.outcome is not None}
        return cls(goals, tuple(sorted({round_ for _, round_ in cells})), cells)

    def disqualification(self, number: int) -> str | None:
        """Return why a finalist cannot win: a failure, a missed SLO or a lacking round; None if it can."""
        measured = [self.cells.get((number, round_)) for round_ in self.numbers]
        for record in measured:
            fault = None if record is None else fault_of(self.goals, record)
            if fault is not None:
                return fault
        lacking = [round_ for round_, record in zip(self.numbers, measured, strict=True) if record is None]
        return f"not measured in round {lacking[0]}" if lacking else None

    def score_ratios(self, numbers: Sequence[int], reference: int) -> dict[int, Ratio]:
        """Return the ratio of each finalist's score to that of the reference, with its interval.

        Args:
            numbers: finalists that were measured in every round, the reference among them.
            reference: the number of the defaults.
        """
        return compare(self._log_scores(numbers), reference)

    def score_residuals(self) -> tuple[float, int]:
        """Return the squared residuals of the scores' logarithms, and their degrees of freedom."""
        complete = [n for n in sorted({n for n, _ in self.cells}) if self.disqualification(n) is None]
        return residual_squares(self._log_scores(complete)) if complete else (0.0, 0)

    def _log_scores(self, numbers: Sequence[int]) -> dict[int, list[float]]:
        runs = [self._values(number, round_) for number in numbers for round_ in self.numbers]
        logs = iter(log_scores(runs, self.goals.scored))
        return {number: [next(logs) for _ in self.numbers] for number in numbers}

    def metric_ratios(self, numbers: Sequence[int], reference: int) -> dict[int, dict[str, Ratio]]:
        """Return the ratio of each finalist's value to that of the reference, by number and metric.

        A finalist whose value of a metric is absent or not positive in a round has no ratio of that metric.
        """
        result: dict[int, dict[str, Ratio]] = {number: {} for number in numbers}
        for objective in self.goals.objectives:
            logs = self._metric_logs(numbers, objective.metric)
            if reference in logs:
                for number, ratio in compare(logs, reference).items():
                    result[number][objective.metric] = ratio
        return result

    def metric_residuals(self, metric: str) -> tuple[float, int]:
        """Return the squared residuals of a metric's logarithms, and their degrees of freedom."""
        complete = [n for n in sorted({n for n, _ in self.cells}) if self.disqualification(n) is None]
        return residual_squares(self._metric_logs(complete, metric))

    def _metric_logs(self, numbers: Sequence[int], metric: str) -> dict[int, list[float]]:
        """Return the logarithms of a metric by trial, without the trials that lack a positive value in a round."""
        logs: dict[int, list[float]] = {}
        for number in numbers:
            values = [self._values(number, round_).get(metric) for round_ in self.numbers]
            positive = [value for value in values if value is not None and value > 0]
            if len(positive) == len(values):
                logs[number] = [math.log(value) for value in positive]
        return logs

    def _values(self, number: int, round_: int) -> dict[str, float | None]:
        outcome = self.cells[number, round_].outcome
        assert outcome is not None
        return self.goals.metrics(outcome)


def score_deviation(goals: Goals, records: Sequence[TrialRecord]) -> tuple[float, int] | None:
    """Return the standard deviation of the logarithm of a measured score, from the rounds of all groups.

    Returns:
        The deviation and its degrees of freedom; None if no group has two rounds.
    """
    return _deviation([each.score_residuals() for each in groups(goals, records)])


def metric_deviation(goals: Goals, records: Sequence[TrialRecord], metric: str) -> tuple[float, int] | None:
    """Return the same of a metric."""
    return _deviation([each.metric_residuals(metric) for each in groups(goals, records)])


def groups(goals: Goals, records: Sequence[TrialRecord]) -> list[Rounds]:
    """Return the rounds of each group of finalists, in the order of the records."""
    labels = dict.fromkeys(record.label for record in records if record.round)
    return [Rounds.of(goals, records, label) for label in labels]


def _deviation(residuals: Sequence[tuple[float, int]]) -> tuple[float, int] | None:
    degrees = sum(each for _, each in residuals)
    return (math.sqrt(sum(squares for squares, _ in residuals) / degrees), degrees) if degrees else None


def score_differences(goals: Goals, records: Sequence[TrialRecord], one: int, other: int) -> list[float]:
    """Return the score's logarithm of one trial minus that of another, for each round of any group with both."""
    pairs = _common(goals, records, one, other)
    logs = iter(log_scores([values for pair in pairs for values in pair], goals.scored))
    return [next(logs) - next(logs) for _ in pairs]


def metric_differences(goals: Goals, records: Sequence[TrialRecord], one: int, other: int, metric: str) -> list[float]:
    """Return the same of a metric; none if a value is absent or not positive in one of these rounds."""
    pairs = [[values.get(metric) for values in pair] for pair in _common(goals, records, one, other)]
    logs = [[math.log(value) for value in pair if value is not None and value > 0] for pair in pairs]
    return [pair[0] - pair[1] for pair in logs] if all(len(pair) == 2 for pair in logs) else []


def _common(
    goals: Goals, records: Sequence[TrialRecord], one: int, other: int
) -> list[tuple[dict[str, float | None], dict[str, float | None]]]:
    """Return the values of two trials in each round of any group in which both were measured."""
    cells = {
        (record.number, record.round): goals.metrics(record.outcome)
        for record in records
        if record.number in (one, other) and record.round and record.outcome and fault_of(goals, record) is None
    }
    both = [round_ for number, round_ in cells if number == one and (other, round_) in cells]
    return [(cells[one, round_], cells[other, round_]) for round_ in both]


def fault_of(goals: Goals, record: TrialRecord) -> str | None:
    """Return why a measurement disqualifies a finalist: a failure, an unmeasured objective or a missed SLO."""
    if record.outcome is None:
        return None
    if record.outcome.failure is not None:
        return f"failed in round {record.round}: {record.outcome.failure.kind}"
    for objective in goals.objectives:
        if record.outcome.metric(objective.metric) is None:
            return f"{objective.metric} was not measured in round {record.round}"
    for slo in goals.slos:
        value = record.outcome.metric(slo.metric)
        if not slo.met(value):
            shown = "absent" if value is None else f"{value:.4g}"
            return f"missed {slo} in round {record.round} ({shown})"
    return None
