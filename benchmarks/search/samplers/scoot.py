"""A sampler after the description of SCOOT (Cheng et al., WWW 2025), without its code and its other features.

Random forests predict the score and the probability that a configuration is feasible. Among random configurations
whose probability reaches a threshold, the sampler suggests the one with the highest expected improvement

    EI = s (z Φ(z) + φ(z)),  z = (m - best) / s,

where m and s are the mean and the standard deviation over the trees. The threshold rises after an infeasible trial and
falls after a feasible one. SCOOT's own score model is a Gaussian process.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import norm

from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.trials import RandomTrial
from benchmarks.search.samplers.planned import PlannedSampler
from search_spaces import ParameterValue

CANDIDATES = 300
"""Random configurations for each suggestion."""
FOREST_TREES = 60
DRAWS_PER_CANDIDATE = 10
"""Draws until a candidate breaks no rule; the last one is taken in any case."""
FIRST_THRESHOLD, THRESHOLD_STEP, LOWEST_THRESHOLD, HIGHEST_THRESHOLD = 0.5, 0.05, 0.25, 0.75
ABSENT_PARAMETER = -1.0
"""The number that stands for a parameter that a configuration lacks."""
FloatArray = NDArray[np.float64]


class ScootSampler(PlannedSampler):
    """The sampler; it maximises a study's only objective."""

    def __init__(self, problem: Problem, seed: int, startup_trials: int) -> None:
        super().__init__(seed)
        self._problem = problem
        self._startup_trials = startup_trials

    def plan(self, study: Study) -> dict[str, ParameterValue]:
        """Return the candidate with the highest expected improvement among those that are likely to be feasible."""
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        if len(trials) < self._startup_trials:
            return self._draw()
        feasible = [_is_feasible(trial) for trial in trials]
        candidates = [self._draw() for _ in range(CANDIDATES)]
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        names = sorted({name for each in candidates for name in each} | {name for t in trials for name in t.params})
        codes = _codes([trial.params for trial in trials] + candidates)
        trial_rows, candidate_rows = (_rows(each, names, codes) for each in ([t.params for t in trials], candidates))
        probability = self._probability(trial_rows, feasible, candidate_rows)
        measured = [index for index, trial in enumerate(trials) if trial.values is not None]
        improvement = np.zeros(len(candidates))
        if len(measured) > 1:
            scores = np.array([(trials[index].values or [0.0])[0] for index in measured])
            best = max((value for value, index in zip(scores, measured, strict=True) if feasible[index]), default=None)
            running_rows = _rows([t.params for t in running if t.params], names, codes)
            improvement = self._improvement(trial_rows[measured], scores, candidate_rows, best, running_rows)
        allowed = probability >= min(feasibility_threshold(feasible), float(probability.max()))
        return candidates[int(np.argmax(np.where(allowed, improvement, -np.inf)))]

    def _draw(self) -> dict[str, ParameterValue]:
        """Return the parameters of a random configuration; it may break a rule after several draws."""
        for _ in range(DRAWS_PER_CANDIDATE):
            trial = RandomTrial(self._random)
            if self._problem.allowed(self._problem.define(trial)):
                break
        return trial.params

    def _forest(self, rows: FloatArray, values: FloatArray) -> Any:
        """Return a random forest that is fitted to the values."""
        from sklearn.ensemble import RandomForestRegressor  # takes a second to import, and --help does not need it

        return RandomForestRegressor(FOREST_TREES, random_state=int(self._random.integers(2**31))).fit(rows, values)

    def _probability(self, rows: FloatArray, feasible: Sequence[bool], candidates: FloatArray) -> FloatArray:
        """Return the probability that each candidate is feasible, shape (candidates,)."""
        if len(set(feasible)) == 1:
            return np.full(len(candidates), float(feasible[0]))
        probability: FloatArray = self._forest(rows, np.array(feasible, dtype=float)).predict(candidates)
        return probability

    def _improvement(
        self, rows: FloatArray, scores: FloatArray, candidates: FloatArray, best: float | None, running: FloatArray
    ) -> FloatArray:
        """Return the expected improvement of each candidate, shape (candidates,).

        Args:
            rows: the measured configurations.
            scores: their scores.
            candidates: the candidates.
            best: the best feasible score; without one, the expected score is returned.
            running: the running configurations, whose scores are set to their predictions.
        """
        forest = self._forest(rows, scores)
        if len(running):
            scores = np.concatenate([scores, forest.predict(running)])
            forest = self._forest(np.vstack([rows, running]), scores)
        by_tree = np.array([tree.predict(candidates) for tree in forest.estimators_])
        mean, deviation = by_tree.mean(axis=0), by_tree.std(axis=0) + 1e-9
        if best is None:
            expected: FloatArray = mean
            return expected
        z = (mean - best) / deviation
        improvement: FloatArray = deviation * (z * norm.cdf(z) + norm.pdf(z))
        return improvement


def feasibility_threshold(feasible: Sequence[bool]) -> float:
    """Return the probability of feasibility that a candidate must reach, after trials in their order."""
    threshold = FIRST_THRESHOLD
    for each in feasible:
        threshold += -THRESHOLD_STEP if each else THRESHOLD_STEP
        threshold = min(HIGHEST_THRESHOLD, max(LOWEST_THRESHOLD, threshold))
    return threshold


def _is_feasible(trial: FrozenTrial) -> bool:
    return trial.state is TrialState.COMPLETE and all(value <= 0 for value in trial.constraints.values())


def _codes(configs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Return a number for each value that is not a number: its place among the parameter's sorted values."""
    texts: dict[str, set[str]] = {}
    for config in configs:
        for name, value in config.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                texts.setdefault(name, set()).add(repr(value))
    return {(name, text): float(i) for name, values in texts.items() for i, text in enumerate(sorted(values))}


def _rows(
    configs: Sequence[Mapping[str, Any]], names: Sequence[str], codes: Mapping[tuple[str, str], float]
) -> FloatArray:
    """Return configurations as numbers, shape (configurations, names)."""

    def number(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return codes[name, repr(value)]
        return math.log(value) if value > 0 else float(value)

    rows = [
        [number(name, config[name]) if name in config else ABSENT_PARAMETER for name in names] for config in configs
    ]
    return np.array(rows, dtype=float).reshape(len(rows), len(names))
