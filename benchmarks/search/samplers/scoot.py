"""A sampler like SCOOT's (Cheng et al., WWW 2025), from its description; its code and its other features are not here.

Random forests learn the score and the probability that a configuration is feasible. Of many drawn configurations it
takes the one with the highest expected improvement among those whose probability reaches a threshold, which rises
after an infeasible trial and falls after a feasible one. SCOOT's own score model is a Gaussian process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import norm

from benchmarks.search.problems.problem import Drawn, Problem
from benchmarks.search.samplers.planned import Planned
from search_spaces import ParameterValue

CANDIDATES = 300
TREES = 60
FIRST_THRESHOLD, STEP, LOWEST, HIGHEST = 0.5, 0.05, 0.25, 0.75
ABSENT = -1.0
Vector = NDArray[np.float64]


class Scoot(Planned):
    """The sampler; it wants the score as its one objective."""

    def __init__(self, problem: Problem, seed: int, startup: int) -> None:
        super().__init__(seed)
        self._problem = problem
        self._startup = startup

    def plan(self, study: Study) -> dict[str, ParameterValue]:
        """Return the parameters of the most promising configuration that seems feasible."""
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        if len(trials) < self._startup:
            return self._draw()
        kept = [_feasible(trial) for trial in trials]
        candidates = [self._draw() for _ in range(CANDIDATES)]
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        names = sorted({name for each in candidates for name in each} | {name for t in trials for name in t.params})
        codes = _codes([trial.params for trial in trials] + candidates)
        seen, wanted = (_table(rows, names, codes) for rows in ([t.params for t in trials], candidates))
        probability = self._probability(seen, kept, wanted)
        measured = [index for index, trial in enumerate(trials) if trial.values is not None]
        gain = np.zeros(len(candidates))
        if len(measured) > 1:
            values = np.array([(trials[index].values or [0.0])[0] for index in measured])
            best = max((value for value, index in zip(values, measured, strict=True) if kept[index]), default=None)
            waiting = _table([t.params for t in running if t.params], names, codes)
            gain = self._improvement(seen[measured], values, wanted, best, waiting)
        allowed = probability >= min(threshold(kept), float(probability.max()))
        return candidates[int(np.argmax(np.where(allowed, gain, -np.inf)))]

    def _draw(self) -> dict[str, ParameterValue]:
        """Return the parameters of a drawn configuration that breaks no known rule, if that can be had."""
        for _ in range(10):
            trial = Drawn(self._random)
            if self._problem.allowed(self._problem.define(trial)):
                break
        return trial.params

    def _probability(self, seen: Vector, kept: Sequence[bool], wanted: Vector) -> Vector:
        if len(set(kept)) == 1:
            return np.full(len(wanted), float(kept[0]))
        from sklearn.ensemble import RandomForestRegressor

        forest = RandomForestRegressor(TREES, random_state=int(self._random.integers(2**31)))
        found: Vector = forest.fit(seen, np.array(kept, dtype=float)).predict(wanted)
        return found

    def _improvement(self, seen: Vector, values: Vector, wanted: Vector, best: float | None, waiting: Vector) -> Vector:
        """Return the expected improvement; without a feasible trial, the expected score. Running trials count as their
        prediction."""
        from sklearn.ensemble import RandomForestRegressor

        def fitted(rows: Vector, known: Vector) -> Any:
            return RandomForestRegressor(TREES, random_state=int(self._random.integers(2**31))).fit(rows, known)

        forest = fitted(seen, values)
        if len(waiting):
            forest = fitted(np.vstack([seen, waiting]), np.concatenate([values, forest.predict(waiting)]))
        each = np.array([tree.predict(wanted) for tree in forest.estimators_])
        mean, deviation = each.mean(axis=0), each.std(axis=0) + 1e-9
        if best is None:
            expected: Vector = mean
            return expected
        z = (mean - best) / deviation
        improvement: Vector = deviation * (z * norm.cdf(z) + norm.pdf(z))
        return improvement


def threshold(kept: Sequence[bool]) -> float:
    """Return the probability that a candidate must reach after such trials, in their order."""
    found = FIRST_THRESHOLD
    for feasible in kept:
        found = min(HIGHEST, max(LOWEST, found + (-STEP if feasible else STEP)))
    return found


def _feasible(trial: FrozenTrial) -> bool:
    return trial.state is TrialState.COMPLETE and all(value <= 0 for value in trial.constraints.values())


def _codes(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Return a number for every value that is none: its place among the parameter's values."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                found.setdefault(name, set()).add(repr(value))
    return {(name, value): float(i) for name, values in found.items() for i, value in enumerate(sorted(values))}


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], codes: Mapping[tuple[str, str], float]) -> Vector:
    def number(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return codes[name, repr(value)]
        return math.log(value) if value > 0 else float(value)

    table = [[number(name, row[name]) if name in row else ABSENT for name in names] for row in rows]
    return np.array(table, dtype=float).reshape(len(table), len(names))
