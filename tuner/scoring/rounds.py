"""The finalists' rounds of a study: who is disqualified, and the ratio of any two trials with its interval.

All rounds that measured both trials count, also those of earlier groups: the winner of their rounds was picked for
them, so that the last ones alone would flatter it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from records.measured import common_rounds, measured, rounds_of
from records.trials import TrialOutcome, TrialRecord
from tuner.scoring.compare import (
    MeasuredRatio,
    Noise,
    Ratio,
    logarithms,
    paired_ratio,
    pooled_noise,
    residual_noise,
    unpaired_ratio,
)
from tuner.scoring.goals import Goals, log_scores


@dataclass(frozen=True)
class Rounds:
    """The finished measurements of one confirmation: its rounds, ascending, and `cells` by trial number and round."""

    goals: Goals
    numbers: tuple[int, ...]
    cells: Mapping[tuple[int, int], TrialRecord]

    @classmethod
    def of(cls, goals: Goals, records: Sequence[TrialRecord], label: str | None) -> Rounds:
        """Return the rounds among a study's records that belong to the confirmation with this name."""
        cells = {(r.number, r.round): r for r in records if r.round and r.label == label and r.outcome is not None}
        return cls(goals, tuple(sorted({round_ for _, round_ in cells})), cells)

    def disqualification(self, number: int) -> str | None:
        """Return why a finalist cannot win: a failure or a missed SLO in a round; None if it can."""
        own = (self.cells.get((number, round_)) for round_ in self.numbers)
        faults = (fault_of(self.goals, record) for record in own if record is not None)
        return next((fault for fault in faults if fault is not None), None)

    def complete(self) -> list[int]:
        """Return the trials that were measured in every round and not disqualified, ascending."""
        whole = {number for number, _ in self.cells if all((number, each) in self.cells for each in self.numbers)}
        return [number for number in sorted(whole) if self.disqualification(number) is None]

    def outcomes(self, number: int) -> list[TrialOutcome]:
        """Return the outcomes of a trial that was measured in every round."""
        found = [self.cells[number, round_].outcome for round_ in self.numbers]
        return [outcome for outcome in found if outcome is not None]


@dataclass(frozen=True)
class StudyRounds:
    """The ratios between trials of a study, by the method of `tuner.scoring.compare`.

    `records` are all of the study, rounds included. `comparisons` is m of that module: the finalists that were compared
    with the reference, times the numbers of rounds after which the rounds may end. `conclusion` is the study's as plain
    JSON, None before its end.
    """

    goals: Goals
    records: Sequence[TrialRecord]
    comparisons: int = 1
    conclusion: Mapping[str, Any] | None = None

    @classmethod
    def concluded(
        cls, goals: Goals, records: Sequence[TrialRecord], conclusion: Mapping[str, Any] | None
    ) -> StudyRounds:
        """Return the rounds of a study with its conclusion."""
        known = conclusion or {}
        scored = [each for each in known.get("contenders", ()) if each["score"]]
        return cls(goals, records, max(1, len(scored)) * known.get("looks", 1), conclusion)

    def score(self, number: int, reference: int) -> Ratio | None:
        """Return the ratio of a trial's score to that of the reference; None without a common round."""
        differences = self.score_differences(number, reference)
        return paired_ratio(differences, self.score_noise, self.comparisons) if differences else None

    def score_differences(self, number: int, reference: int) -> list[float]:
        """Return the score's logarithm of a trial minus that of the reference, for each round with both."""
        values = [self.goals.metrics(each) for pair in self._pairs(number, reference) for each in pair]
        logs = log_scores(values, self.goals.scored)
        return [one - other for one, other in zip(logs[::2], logs[1::2], strict=True)]

    @cached_property
    def score_noise(self) -> Noise | None:
        """The noise of a score's logarithm; None if no group has two configurations in two rounds."""
        return self._noise(
            lambda rows: log_scores([self.goals.metrics(outcome) for outcome in rows], self.goals.scored)
        )

    def metric(self, name: str, number: int, reference: int) -> Ratio | None:
        """Return the ratio of a trial's value to that of the reference, from common rounds, else from benchmarks.

        Returns:
            None if a value is absent or not positive.
        """
        pairs = self._pairs(number, reference)
        if not pairs:
            return unpaired(name, *self._values(number, reference), self.benchmarks(name))
        logs = [logarithms(pair[side].metric(name) for pair in pairs) for side in (0, 1)]
        if logs[0] is None or logs[1] is None:
            return None
        differences = [one - other for one, other in zip(*logs, strict=True)]
        return paired_ratio(differences, self.noise(name), self.comparisons)

    def noise(self, name: str) -> Noise | None:
        """Return the noise of a metric's logarithm between rounds; None where it is not known."""
        if name not in self._noises:
            self._noises[name] = self._noise(lambda rows: [_log(outcome.metric(name)) for outcome in rows])
        return self._noises[name]

    def benchmarks(self, name: str) -> list[list[float]]:
        """Return the logarithms of a metric in the benchmarks of each trial of the search with several."""
        outcomes = [each.outcome for each in self.records if not each.round and each.outcome is not None]
        several = (_benchmarks(outcome, name) for outcome in outcomes if len(outcome.repeats) > 1)
        return [logs for logs in several if logs is not None]

    @cached_property
    def _noises(self) -> dict[str, Noise | None]:
        return {}

    def beside(self, name: str, number: int, reference: int) -> MeasuredRatio:
        """Return a metric of a trial beside that of the reference: values, ratio and interval."""
        one, other = self._values(number, reference)
        found, rounds = self.metric(name, number, reference), len(common_rounds(self.records, number, reference))
        return measured_ratio(name, one, other, found, rounds)

    def _values(self, number: int, reference: int) -> tuple[TrialOutcome | None, TrialOutcome | None]:
        """Return the outcomes of the reference and of a trial; of the search if only one of them has rounds."""
        apart = bool(rounds_of(self.records, number)) != bool(rounds_of(self.records, reference))
        one, other = (measured(self.conclusion, self.records, each, searched=apart) for each in (reference, number))
        return one, other

    def _pairs(self, number: int, reference: int) -> list[tuple[TrialOutcome, TrialOutcome]]:
        """Return the outcomes of a trial and of the reference in each common round."""
        mine, others = rounds_of(self.records, number), rounds_of(self.records, reference)
        return [(mine[round_], others[round_]) for round_ in common_rounds(self.records, number, reference)]

    def _noise(self, logs_of: Callable[[Sequence[TrialOutcome]], Sequence[float | None]]) -> Noise | None:
        """Return the noise of the trials that met every SLO; of all that did not fail where these are too few.

        An overloaded server varies much more than the others, and would hide their differences.
        """
        rounds = [(record, record.outcome) for record in self.records if record.round and record.outcome is not None]
        for goals in (self.goals, replace(self.goals, slos=(), objectives=())):
            out = {record.number for record, _ in rounds if fault_of(goals, record) is not None}
            cells = {(r.number, r.round): outcome for r, outcome in rounds if r.number not in out}
            logs = dict(zip(cells, logs_of([*cells.values()]), strict=True))
            out = {number for (number, _), each in logs.items() if each is None}
            found = residual_noise({key: log for key, log in logs.items() if log is not None and key[0] not in out})
            if found is not None:
                return found
        return None


def unpaired(
    name: str, one: TrialOutcome | None, other: TrialOutcome | None, benchmarks: Sequence[Sequence[float]]
) -> Ratio | None:
    """Return the ratio of the second outcome's metric to the first's, from their benchmarks; None without values."""
    logs = [None if outcome is None else _benchmarks(outcome, name) for outcome in (one, other)]
    if logs[0] is None or logs[1] is None:
        return None
    return unpaired_ratio(logs[0], logs[1], pooled_noise(benchmarks))


def measured_ratio(
    name: str, one: TrialOutcome | None, other: TrialOutcome | None, found: Ratio | None, rounds: int
) -> MeasuredRatio:
    """Return a metric of two outcomes with its ratio; `rounds` measured both."""
    counts = [0 if outcome is None else len(outcome.repeats) for outcome in (one, other)]
    basis = f"{counts[0]} and {counts[1]} repeats"
    if rounds:
        basis = f"{rounds} rounds" if rounds > 1 else "1 round"
    values = [None if outcome is None else outcome.metric(name) for outcome in (one, other)]
    ratio, low, high = (None, None, None) if found is None else (found.ratio, found.low, found.high)
    return MeasuredRatio(values[0], values[1], ratio, low, high, basis)


def _benchmarks(outcome: TrialOutcome, name: str) -> list[float] | None:
    return logarithms(repeat.metrics.get(name) for repeat in outcome.repeats)


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and value > 0 else None


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
