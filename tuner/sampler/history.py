"""The trials of an Optuna study as the surrogate reads them: scores, constraints, failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tuner.sampler.encoding import Params, Vector

LEAST_RATIO = 0.01
"""Ratios to the reference are clipped to between this and its inverse: a throughput of 0 has no logarithm."""
LARGEST_VIOLATION = 3.0
"""Compressed violations are clipped to plus and minus this, that of eleven times an SLO: arsinh(10) is 3."""
MARGIN_OF_ZERO = 0.1
"""A violation of exactly 0 counts as satisfied by this margin: a success rate of 1 cannot be higher."""


GAIN_AT_MOST = "gain_at_most"
"""User attribute of a PRUNED trial that ran and was cut short: a bound on its weighted mean of logarithmic gains over
the first measured trial; None: only constraints are known. Its constraint values are lower bounds."""


@dataclass(frozen=True)
class ObjectiveScale:
    """How a value of an objective becomes a gain over the reference.

    Args:
        sign: 1 to maximise, -1 to minimise.
        weight: of the objective in the score; the weights of all objectives sum to 1.
        reference: the value whose gain is 0: that of the first measured trial.
        log: whether gains are logarithms of ratios, else differences in `unit`s.
        unit: the interquartile range of the values.
    """

    sign: float
    weight: float
    reference: float
    log: bool
    unit: float

    @property
    def gains(self) -> tuple[float, float, float | None]:
        """The fields that gains depend on."""
        return self.sign, self.reference, None if self.log else self.unit

    def gain(self, value: float) -> float:
        """Return sign · ln(value / reference), or sign · (value - reference) / unit."""
        if not self.log:
            return self.sign * (value - self.reference) / self.unit
        ratio = max(value / self.reference, LEAST_RATIO) if self.reference > 0 else 1.0
        return self.sign * math.log(min(ratio, 1 / LEAST_RATIO))


@dataclass
class History:
    """The trials of a study, by outcome.

    Args:
        measured: configurations of the trials with values.
        values: their objective values, in the order of `measured`.
        constraints: their constraint values by name; at most 0 is satisfied.
        numbers: their trial numbers.
        failed: configurations that failed.
        cut: configurations that ran and were cut short.
        gains_at_most: bounds on their gains, see `GAIN_AT_MOST`.
        least_constraints: lower bounds on their constraint values.
        pending: configurations that are running.
        discarded: configurations whose trials were stored as FAIL, without influence; not proposed again.
        hidden: configurations of trials that the study does not contain; counted, and not proposed again.
        feasible_flags: of each measured, failed or cut trial, in order, whether it was measured and satisfied every
            constraint.
        distributions: of all parameters of these trials.
    """

    measured: list[Params] = field(default_factory=list)
    values: list[tuple[float, ...]] = field(default_factory=list)
    constraints: list[Mapping[str, float]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    failed: list[Params] = field(default_factory=list)
    cut: list[Params] = field(default_factory=list)
    gains_at_most: list[float | None] = field(default_factory=list)
    least_constraints: list[Mapping[str, float]] = field(default_factory=list)
    pending: list[Params] = field(default_factory=list)
    discarded: list[Params] = field(default_factory=list)
    hidden: list[Params] = field(default_factory=list)
    feasible_flags: list[bool] = field(default_factory=list)
    distributions: dict[str, BaseDistribution] = field(default_factory=dict)

    @property
    def n_finished(self) -> int:
        """The number of trials that were measured, cut or failed, hidden ones included."""
        return len(self.measured) + len(self.cut) + len(self.failed) + len(self.hidden)

    @property
    def tried(self) -> list[Params]:
        """The configurations that were measured, cut, failed or are running."""
        return [*self.measured, *self.cut, *self.failed, *self.pending]

    @property
    def excluded(self) -> set[frozenset[tuple[str, object]]]:
        """The items of each configuration that must not be proposed again."""
        return {frozenset(config.items()) for config in (*self.tried, *self.discarded, *self.hidden)}

    @property
    def feasible(self) -> list[Params]:
        """The measured configurations that satisfied every constraint."""
        pairs = zip(self.measured, self.constraints, strict=True)
        return [config for config, each in pairs if all(value <= 0 for value in each.values())]

    @property
    def infeasible(self) -> list[Params]:
        """The configurations that failed or violated a constraint."""
        pairs = zip([*self.measured, *self.cut], [*self.constraints, *self.least_constraints], strict=True)
        return [*self.failed, *(config for config, each in pairs if any(value > 0 for value in each.values()))]

    def infeasible_share(self, last: int) -> float:
        """Return the share of infeasible trials among the last ones that were measured or failed."""
        recent = self.feasible_flags[-last:]
        return 1.0 - sum(recent) / len(recent) if recent else 0.0

    def constraint_names(self) -> list[str]:
        """Return the names of all constraints, sorted."""
        return sorted({name for each in self.constraints for name in each})


def objective_scales(
    values: Sequence[tuple[float, ...]], directions: Sequence[StudyDirection], weights: Sequence[float] | None
) -> list[ObjectiveScale]:
    """Return the scale of each objective: relative to the first values, logarithmic unless a value is negative.

    Without weights, all are equal.
    """
    given = weights or [1.0] * len(directions)
    scales = []
    for index, direction in enumerate(directions):
        column = np.array([each[index] for each in values], dtype=float)
        positive = bool((column >= 0).all()) and column[0] > 0
        spread = float(np.subtract(*np.percentile(column, [75, 25]))) or float(np.std(column)) or 1.0
        sign = 1.0 if direction is StudyDirection.MAXIMIZE else -1.0
        scales.append(ObjectiveScale(sign, given[index] / sum(given), float(column[0]), positive, spread))
    return scales


def read_history(trials: Sequence[FrozenTrial], failure_constraint: str) -> History:
    """Return the history of a study's trials.

    - COMPLETE with finite values: measured.
    - PRUNED with `GAIN_AT_MOST`: cut short.
    - PRUNED with a violated constraint: failed by its configuration.
    - RUNNING with parameters: pending.
    - FAIL: discarded. Anything else is ignored.
    """
    history = History()
    for trial in trials:
        if trial.state is TrialState.COMPLETE and all(math.isfinite(value) for value in trial.values):
            history.measured.append(trial.params)
            history.numbers.append(trial.number)
            history.values.append(tuple(trial.values))
            history.constraints.append({k: v for k, v in trial.constraints.items() if k != failure_constraint})
            history.feasible_flags.append(all(value <= 0 for value in trial.constraints.values()))
        elif trial.state is TrialState.PRUNED and GAIN_AT_MOST in trial.user_attrs:
            history.cut.append(trial.params)
            history.gains_at_most.append(trial.user_attrs[GAIN_AT_MOST])
            history.least_constraints.append(
                {name: value for name, value in trial.constraints.items() if name != failure_constraint}
            )
            history.feasible_flags.append(False)
        elif trial.state is TrialState.PRUNED and any(value > 0 for value in trial.constraints.values()):
            history.failed.append(trial.params)
            history.feasible_flags.append(False)
        elif trial.state is TrialState.RUNNING and trial.params:
            history.pending.append(trial.params)
        else:
            history.discarded += [trial.params] if trial.state is TrialState.FAIL and trial.params else []
            continue
        history.distributions.update(trial.distributions)
    return history


def compress_violations(violations: ArrayLike) -> Vector:
    """Return arsinh(violation), clipped; exactly 0 becomes `-MARGIN_OF_ZERO`.

    The slope is 1 at 0. Violations far beyond the bound are drawn towards it, so that they do not dominate the fit.
    """
    compressed = np.clip(np.arcsinh(np.asarray(violations, dtype=float)), -LARGEST_VIOLATION, LARGEST_VIOLATION)
    return np.where(compressed == 0.0, -MARGIN_OF_ZERO, compressed)
