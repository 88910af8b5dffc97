"""Recorded tables of real measurements, replayed exactly: a sampler picks among the rows that were measured.

What is asked for is moved to the nearest row that was not measured yet, by Gower's distance: a number counts by its
rank among the table's values, a category by being equal or not. A configuration that was recorded several times gives
one of its recordings, drawn by the seed; its truth is their mean.

The simulator was fitted to the rows of `h200-a05` and `h200-b7`: there its predictions are better than elsewhere, so
look at `--prior none` as well. It has not seen those of `h200-study` and `h200-7b-study`; the latter were chosen by
this project's sampler.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.search.problems.problem import Config, Outcome, Problem, Suggest, crashed, generator, key_of
from benchmarks.search.problems.rows import Metrics, TableRow, read_rows
from search_spaces import ParameterValue
from tuner.scoring.objectives import parse_objective
from tuner.scoring.slo import parse_slo

REFERENCE = Path(__file__).parents[2] / "reference"
RESULTS = Path(__file__).parents[3] / "docs" / "reports" / "data"
LOG_FROM = 8.0
"""Ratio of the largest to the smallest value from which a number is asked for on a log scale."""
MOST_CHOICES = 4
"""Values up to which a number is asked for as one of them, as block sizes are; a row of another would be far."""
Predict = Callable[[Config], Metrics | None]
"""Takes a configuration to its predicted metrics, None if it is predicted not to run."""


@dataclass(frozen=True)
class Table:
    """A table and what it is judged by. `hints` are effective values of the defaults; `predict` makes a prior."""

    name: str
    file: Path
    objectives: tuple[str, ...]
    slos: tuple[str, ...] = ("success_rate>=1",)
    hints: Config = field(default_factory=dict)
    predict: Predict | None = None


class TableProblem(Problem):
    """The rows of one table. A parameter is one that takes several values in it."""

    family = "tables"

    def __init__(self, table: Table, prior: str = "right") -> None:
        super().__init__(prior)
        self.name = table.name
        self.objectives = tuple(parse_objective(text) for text in table.objectives)
        self._slos = tuple(parse_slo(text) for text in table.slos)
        self.constraint_names = tuple(str(slo) for slo in self._slos)
        self._predict = table.predict
        self.rows = read_rows(table.file, table.hints)
        self._by_key = {key_of(row.config): row for row in self.rows}
        self._domains = _domains([row.config for row in self.rows if row.config])
        own = {name: None for name, domain in self._domains.items() if domain.choices and None in domain.choices}
        hints = {**own, **table.hints}
        self._hints = {name: value for name, value in hints.items() if self._holds(name, value)}

    def _holds(self, name: str, value: ParameterValue) -> bool:
        domain = self._domains.get(name)
        if domain is None:
            return False
        if domain.choices is not None:
            return value in domain.choices
        return isinstance(value, int | float) and domain.numbers[0] <= value <= domain.numbers[-1]

    def allowed(self, config: Config) -> bool:
        """See `Problem`: what another table's search teaches may have values that this one's rows lack."""
        return all(name not in self._domains or self._holds(name, value) for name, value in config.items())

    def define(self, trial: Suggest) -> dict[str, ParameterValue]:
        """See `Problem`: no parameter is conditional."""
        return {name: domain.suggest(name, trial) for name, domain in self._domains.items()}

    def defaults(self) -> tuple[dict[str, ParameterValue], dict[str, ParameterValue]]:
        """See `Problem`."""
        return {}, dict(self._hints)

    def snap(self, config: Config, measured: Collection[str]) -> Config | None:
        """See `Problem`; among rows that are equally near, one is drawn."""
        left = [row.config for key, row in self._by_key.items() if key not in measured]
        if not left:
            return None
        distances = np.array([self.distance(config, each) for each in left])
        nearest = np.flatnonzero(distances <= distances.min() + 1e-9)
        return left[int(generator("tie", key_of(config)).choice(nearest))]

    def distance(self, one: Config, other: Config) -> float:
        """Return Gower's distance between two configurations, over the parameters that both are known to have."""
        one, other = one or self._hints, other or self._hints
        each = [
            domain.distance(one[name], other[name])
            for name, domain in self._domains.items()
            if name in one and name in other
        ]
        return statistics.fmean(each) if each else 1.0

    def _outcome(self, metrics: Metrics, seconds: float, reference: Sequence[float]) -> Outcome:
        values = [metrics.get(objective.metric) for objective in self.objectives]
        known = tuple(value for value in values if value is not None)
        if len(known) < len(values):
            return crashed(seconds)
        constraints = {str(slo): slo.violation(metrics.get(slo.metric)) for slo in self._slos}
        return Outcome(known, constraints, self.score_of(known, reference), seconds)

    @cached_property
    def reference(self) -> tuple[float, ...]:
        """See `Problem`: the mean of all recordings of the defaults."""
        found = self._mean(self._by_key[key_of({})])
        return tuple(found[objective.metric] or 0.0 for objective in self.objectives)

    def _mean(self, row: TableRow) -> dict[str, float | None]:
        """Return the geometric means of a row's objectives and the means of what its SLOs are about."""
        found: dict[str, float | None] = {}
        for name in {*(slo.metric for slo in self._slos), *(each.metric for each in self.objectives)}:
            values = [value for run in row.runs if (value := run.get(name)) is not None]
            positive = values and min(values) > 0
            found[name] = (
                (statistics.geometric_mean(values) if positive else statistics.fmean(values)) if values else None
            )
        return found

    def measure(self, config: Config, seed: int) -> Outcome:
        """See `Problem`."""
        row = self._by_key[key_of(config)]
        if not row.runs:
            return crashed(row.seconds)
        run = row.runs[int(generator(key_of(config), seed).integers(len(row.runs)))]
        return self._outcome(run, row.seconds, self.reference)

    def find_truth(self, config: Config) -> float | None:
        """See `Problem`."""
        row = self._by_key[key_of(config)]
        if not row.runs:
            return None
        found = self._outcome(self._mean(row), row.seconds, self.reference)
        return found.score if found.feasible else None

    def find_prior(self, config: Config) -> Outcome | None:
        """See `Problem`: what the simulator predicts, of a row or of anything between them."""
        if self._predict is None:
            return None
        row = self._by_key.get(key_of(config))
        found = self._predict(config if row is None else row.recorded)
        seconds = self.rows[0].seconds if row is None else row.seconds
        if found is None or self.predicted_reference is None:
            return crashed(seconds)
        return self._outcome(found, seconds, self.predicted_reference)

    @cached_property
    def predicted_reference(self) -> tuple[float, ...] | None:
        """See `Problem`."""
        found = None if self._predict is None else self._predict({})
        return None if found is None else tuple(found[objective.metric] or 0.0 for objective in self.objectives)

    @cached_property
    def best(self) -> float:
        """See `Problem`."""
        return max(score for row in self.rows if (score := self.truth(row.config)) is not None)


@dataclass(frozen=True)
class Domain:
    """What a parameter of a table may be: one of `choices`, or a number; `numbers` are the table's, ascending."""

    choices: tuple[ParameterValue, ...] | None
    numbers: tuple[float, ...] = ()

    def suggest(self, name: str, trial: Suggest) -> ParameterValue:
        """Ask a trial for a value."""
        if self.choices is not None:
            return trial.suggest_categorical(name, self.choices)
        low, high = self.numbers[0], self.numbers[-1]
        log = low > 0 and high / low >= LOG_FROM
        if all(float(value).is_integer() for value in self.numbers):
            return trial.suggest_int(name, int(low), int(high), log=log)
        return trial.suggest_float(name, low, high, log=log)

    def distance(self, one: ParameterValue, other: ParameterValue) -> float:
        """Return 0 for equal values to 1."""
        if self.choices is not None:
            return float(one != other)
        return abs(self._rank(one) - self._rank(other))

    def _rank(self, value: ParameterValue) -> float:
        """Return the rank among the table's values as a share, between two of them by its logarithm."""
        assert isinstance(value, int | float)
        positive = self.numbers[0] > 0
        places = np.log(self.numbers) if positive else np.array(self.numbers)
        place = math.log(value) if positive else value
        return float(np.interp(place, places, np.linspace(0.0, 1.0, len(self.numbers))))


def _domains(configs: Sequence[Config]) -> dict[str, Domain]:
    found = {}
    for name in dict.fromkeys(name for config in configs for name in config):
        values = list(dict.fromkeys(config.get(name) for config in configs))
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(values) < 2:
            continue
        if len(numbers) == len(values) and len(values) > MOST_CHOICES:
            found[name] = Domain(None, tuple(sorted(numbers)))
        else:
            found[name] = Domain(tuple(sorted(values, key=lambda value: (value is not None, str(value)))))
    return found


H200_DEFAULTS: Config = {
    **{"max_num_seqs": 1024, "max_num_batched_tokens": 8192, "max_model_len": 32768, "block_size": 16},
    **{"cudagraph_mode": "FULL_AND_PIECEWISE", "capture_max": 512, "prefix_caching": True, "async_scheduling": True},
    **{"stream_interval": 1, "api_server_count": 1, "kv_cache_dtype": "auto", "optimization_level": 2},
}
"""What vLLM 0.25.1 chooses on an H200 where nothing is said."""
STUDY_DEFAULTS: Config = {
    **{name: H200_DEFAULTS[name] for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")},
    **{name: H200_DEFAULTS[name] for name in ("prefix_caching", "stream_interval", "api_server_count")},
    **{"optimization_level": 2, "capture_size_max": 512, "gpu_memory_utilization": 0.92, "speculative": "off"},
}
"""The same in the names of the space that this project's own study was made with."""
THREE = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
STUDY_SLOS = ("p99_tpot_ms<50", "p99_ttft_ms<2000", "success_rate>=1")


def tables() -> dict[str, Table]:
    """Return the tables of this repository by name."""
    own = [
        Table("h200-a05", REFERENCE / "h200_a05.jsonl", ("output_throughput",), hints=H200_DEFAULTS),
        Table("h200-b7", REFERENCE / "h200_b7.jsonl", THREE, hints=H200_DEFAULTS),
        Table("h200-study", RESULTS / "h200.csv", THREE, STUDY_SLOS, STUDY_DEFAULTS),
        Table("h200-7b-study", RESULTS / "h200-7b.csv", THREE, hints=STUDY_DEFAULTS),
        Table("temperature-0", RESULTS / "temperature-0.csv", THREE, STUDY_SLOS, {"speculative": "off"}),
        Table("temperature-1", RESULTS / "temperature-1.csv", THREE, STUDY_SLOS, {"speculative": "off"}),
    ]
    return {table.name: table for table in own}
