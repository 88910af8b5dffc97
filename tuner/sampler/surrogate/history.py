"""What a sampler reads off an Optuna study: scores, constraints, failures, and what is still running."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tuner.sampler.surrogate.encoding import Params, Vector

FLOOR = 0.01
"""A value that is to be maximised counts as at least this share of the first: nothing is worth a hundredth."""

WORST_VIOLATION = 3.0
KEPT = 0.1


@dataclass(frozen=True)
class Scale:
    """How an objective's value becomes a gain: `log` by its logarithm, else by its value over `unit`."""

    sign: float
    weight: float
    reference: float
    log: bool
    unit: float

    @property
    def gains(self) -> tuple[float, float, float | None]:
        """What gains depend on: scales that agree in it, whatever their weights, give the same."""
        return self.sign, self.reference, None if self.log else self.unit

    def gain(self, value: float) -> float:
        """Return how much better a value is than the reference: ln of the factor, or units."""
        if not self.log:
            return self.sign * (value - self.reference) / self.unit
        ratio = max(value / self.reference, FLOOR) if self.reference > 0 else 1.0
        return self.sign * math.log(min(ratio, 1 / FLOOR))


@dataclass
class History:
    """The trials of a study, sorted by what they teach.

    Rows of `values`, `constraints` and trials' `numbers` belong to `measured`; `kept` says of each trial that taught
    something, in order, whether it kept every promise. `hidden` are configurations of trials that are not shown.
    """

    measured: list[Params] = field(default_factory=list)
    values: list[tuple[float, ...]] = field(default_factory=list)
    constraints: list[Mapping[str, float]] = field(default_factory=list)
    failed: list[Params] = field(default_factory=list)
    pending: list[Params] = field(default_factory=list)
    dropped: list[Params] = field(default_factory=list)
    hidden: list[Params] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    distributions: dict[str, BaseDistribution] = field(default_factory=dict)

    @property
    def known(self) -> int:
        """How many trials came to an end that teaches something, shown or not."""
        return len(self.measured) + len(self.failed) + len(self.hidden)

    @property
    def tried(self) -> list[Params]:
        """Every configuration that was or is being tried."""
        return [*self.measured, *self.failed, *self.pending]

    @property
    def taken(self) -> set[frozenset[tuple[str, object]]]:
        """The items of every configuration that is not to be proposed again."""
        return {frozenset(config.items()) for config in (*self.tried, *self.dropped, *self.hidden)}

    @property
    def good(self) -> list[Params]:
        """What was measured and kept every promise."""
        pairs = zip(self.measured, self.constraints, strict=True)
        return [config for config, each in pairs if all(value <= 0 for value in each.values())]

    @property
    def bad(self) -> list[Params]:
        """What failed or broke a promise."""
        pairs = zip(self.measured, self.constraints, strict=True)
        return [*self.failed, *(config for config, each in pairs if any(value > 0 for value in each.values()))]

    def lost(self, last: int) -> float:
        """Return the share of the last trials that failed or broke a promise."""
        recent = self.kept[-last:]
        return 1.0 - sum(recent) / len(recent) if recent else 0.0

    def names(self) -> list[str]:
        """Return the constraints' names."""
        return sorted({name for each in self.constraints for name in each})


def scales_of(
    values: Sequence[tuple[float, ...]], directions: Sequence[StudyDirection], weights: Sequence[float] | None
) -> list[Scale]:
    """Return each objective's scale: relative to the first values, by logarithms if none is negative."""
    given = weights or [1.0] * len(directions)
    found = []
    for index, direction in enumerate(directions):
        column = np.array([each[index] for each in values], dtype=float)
        positive = bool((column >= 0).all()) and column[0] > 0
        spread = float(np.subtract(*np.percentile(column, [75, 25]))) or float(np.std(column)) or 1.0
        sign = 1.0 if direction is StudyDirection.MAXIMIZE else -1.0
        found.append(Scale(sign, given[index] / sum(given), float(column[0]), positive, spread))
    return found


def read(trials: Sequence[FrozenTrial], failed_name: str) -> History:
    """Return what the trials teach.

    A trial with all its values was measured; one that was pruned with a violated constraint failed by its
    configuration; one that runs is pending; the rest says nothing, and what FAIL dropped is not to be proposed again.
    The constraint `failed_name` is no promise but says that a configuration failed.
    """
    history = History()
    for trial in trials:
        if trial.state is TrialState.COMPLETE and all(math.isfinite(value) for value in trial.values):
            history.measured.append(trial.params)
            history.numbers.append(trial.number)
            history.values.append(tuple(trial.values))
            history.constraints.append({k: v for k, v in trial.constraints.items() if k != failed_name})
            history.kept.append(all(value <= 0 for value in trial.constraints.values()))
        elif trial.state is TrialState.PRUNED and any(value > 0 for value in trial.constraints.values()):
            history.failed.append(trial.params)
            history.kept.append(False)
        elif trial.state is TrialState.RUNNING and trial.params:
            history.pending.append(trial.params)
        else:
            history.dropped += [trial.params] if trial.state is TrialState.FAIL and trial.params else []
            continue
        history.distributions.update(trial.distributions)
    return history


def squeezed(violation: ArrayLike) -> Vector:
    """Return violations with what is far beyond a promise drawn nearer.

    The slope at 0 is 1. A promise that is kept with nothing to spare, as every request succeeding is, counts as kept by
    `KEPT`.
    """
    drawn = np.clip(np.arcsinh(np.asarray(violation, dtype=float)), -WORST_VIOLATION, WORST_VIOLATION)
    return np.where(drawn == 0.0, -KEPT, drawn)
