"""Replays a recorded table of real measurements: a sampler picks among the measured rows.

A suggested configuration is replaced by the nearest row that is not measured yet, by Gower's distance: the mean over
parameters of the difference in rank (numbers) or of 0 for equal and 1 for unequal values (categories). A configuration
with several recordings returns one of them, drawn by the seed; its true score is that of their mean.
"""

import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.search.problems.problem import (
    MetricsByName,
    Outcome,
    Problem,
    config_key,
    crashed_outcome,
    seeded_generator,
)
from benchmarks.search.problems.tables.domain import domains_of
from benchmarks.search.problems.tables.rows import TableRow, read_rows
from records.trials import Config
from search_spaces import ParameterValue, Trial
from tuner.scoring.goals import parse_objective, parse_slo

TIE = 1e-9
"""Distances that differ by less are equal."""
Predict = Callable[[Config], MetricsByName | None]
"""Returns the predicted metrics of a configuration, None for a predicted crash."""


@dataclass(frozen=True)
class Table:
    """A table with its objectives and SLOs.

    Attributes:
        name: the problem's name.
        file: JSON lines, or a study's CSV file.
        objectives: the objectives, as on the command line.
        slos: the SLOs, as on the command line.
        hints: the engine's effective values of the defaults.
        predict: the prior; None if its card cannot be simulated.
    """

    name: str
    file: Path
    objectives: tuple[str, ...]
    slos: tuple[str, ...] = ("success_rate>=1",)
    hints: Config = field(default_factory=dict)
    predict: Predict | None = None


class TableProblem(Problem):
    """The rows of one table. Its parameters are those that take several values in the table."""

    family = "tables"

    def __init__(self, table: Table, prior: str = "right") -> None:
        super().__init__(prior)
        self.name = table.name
        self.objectives = tuple(parse_objective(text) for text in table.objectives)
        self._slos = tuple(parse_slo(text) for text in table.slos)
        self.constraint_names = tuple(str(slo) for slo in self._slos)
        self._predict = table.predict
        self.rows = read_rows(table.file, table.hints)
        self._by_key = {config_key(row.config): row for row in self.rows}
        self._domains = domains_of([row.config for row in self.rows if row.config])
        unset = {name: None for name, domain in self._domains.items() if domain.choices and None in domain.choices}
        hints = {**unset, **table.hints}
        self._hints = {name: value for name, value in hints.items() if self._contains(name, value)}

    def _contains(self, name: str, value: ParameterValue) -> bool:
        domain = self._domains.get(name)
        return domain is not None and domain.contains(value)

    def allowed(self, config: Config) -> bool:
        """Return whether the table's domains contain each value; a source study may have measured others."""
        return all(name not in self._domains or self._contains(name, value) for name, value in config.items())

    def define(self, trial: Trial) -> dict[str, ParameterValue]:
        """Return a configuration of the trial's suggestions; no parameter is conditional."""
        return {name: domain.suggest(name, trial) for name, domain in self._domains.items()}

    def defaults(self) -> tuple[dict[str, ParameterValue], dict[str, ParameterValue]]:
        """Return the empty configuration and the effective values that the table's domains contain."""
        return {}, dict(self._hints)

    def snap(self, config: Config, measured: Collection[str]) -> Config | None:
        """Return the nearest row that is not measured; a tie is broken at random."""
        left = [row.config for key, row in self._by_key.items() if key not in measured]
        if not left:
            return None
        distances = np.array([self.distance(config, each) for each in left])
        nearest = np.flatnonzero(distances <= distances.min() + TIE)
        return left[int(seeded_generator("tie", config_key(config)).choice(nearest))]

    def distance(self, one: Config, other: Config) -> float:
        """Return Gower's distance of two configurations over the parameters that both have."""
        one, other = one or self._hints, other or self._hints
        each = [
            domain.distance(one[name], other[name])
            for name, domain in self._domains.items()
            if name in one and name in other
        ]
        return statistics.fmean(each) if each else 1.0

    def _outcome(self, metrics: MetricsByName, seconds: float, reference: Sequence[float]) -> Outcome:
        values = [metrics.get(objective.metric) for objective in self.objectives]
        known = tuple(value for value in values if value is not None)
        if len(known) < len(values):
            return crashed_outcome(seconds)
        constraints = {str(slo): slo.violation(metrics.get(slo.metric)) for slo in self._slos}
        return Outcome(known, constraints, self.score_of(known, reference), seconds)

    def _objective_values(self, metrics: MetricsByName) -> tuple[float, ...]:
        return tuple(metrics[objective.metric] or 0.0 for objective in self.objectives)

    @cached_property
    def reference(self) -> tuple[float, ...]:
        """The mean objectives of all recordings of the defaults."""
        return self._objective_values(self._mean(self._by_key[config_key({})]))

    def _mean(self, row: TableRow) -> dict[str, float | None]:
        """Return the means of a row's objectives and SLO metrics: geometric where every value is positive."""
        means: dict[str, float | None] = {}
        for name in {*(slo.metric for slo in self._slos), *(each.metric for each in self.objectives)}:
            values = [value for run in row.runs if (value := run.get(name)) is not None]
            mean = statistics.geometric_mean if values and min(values) > 0 else statistics.fmean
            means[name] = mean(values) if values else None
        return means

    def measure(self, config: Config, seed: int) -> Outcome:
        """Return one of the recordings of the configuration."""
        row = self._by_key[config_key(config)]
        if not row.runs:
            return crashed_outcome(row.seconds)
        run = row.runs[int(seeded_generator(config_key(config), seed).integers(len(row.runs)))]
        return self._outcome(run, row.seconds, self.reference)

    def compute_true_score(self, config: Config) -> float | None:
        """Return the score of the recordings' mean; None if the row failed or is infeasible."""
        row = self._by_key[config_key(config)]
        if not row.runs:
            return None
        outcome = self._outcome(self._mean(row), row.seconds, self.reference)
        return outcome.score if outcome.feasible else None

    def compute_prediction(self, config: Config) -> Outcome | None:
        """Return the simulator's prediction of a row, or of a configuration between rows."""
        if self._predict is None:
            return None
        row = self._by_key.get(config_key(config))
        metrics = self._predict(config if row is None else row.recorded)
        seconds = self.rows[0].seconds if row is None else row.seconds
        if metrics is None or self.predicted_reference is None:
            return crashed_outcome(seconds)
        return self._outcome(metrics, seconds, self.predicted_reference)

    @cached_property
    def predicted_reference(self) -> tuple[float, ...] | None:
        """The objectives that the simulator predicts for the defaults."""
        metrics = None if self._predict is None else self._predict({})
        return None if metrics is None else self._objective_values(metrics)

    @cached_property
    def best(self) -> float:
        """The best true score among the rows."""
        return max(score for row in self.rows if (score := self.true_score(row.config)) is not None)
