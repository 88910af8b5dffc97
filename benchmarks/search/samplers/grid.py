"""A grid over two parameters, as vLLM's auto_tune searches."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from optuna.study import Study

from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.trials import RandomTrial
from benchmarks.search.samplers.planned import PlannedSampler
from search_spaces import ParameterValue

GRID_NAMES = (("max_num_seqs", "max_num_batched_tokens"), ("seqs", "tokens"), ("batch", "chunk"))
"""The parameters of vLLM's auto_tune, and the corresponding ones of the formulas."""
RANDOM_CONFIGURATIONS = 8
"""Number of random configurations that show a problem's parameters."""


class GridSampler(PlannedSampler):
    """Suggests each pair of powers of two of two parameters, the second varying fastest; others keep their defaults."""

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(seed)
        config, hints = problem.defaults()
        self._defaults = {**hints, **config}
        self._pairs = iter(_pairs(problem))

    def plan(self, study: Study) -> dict[str, ParameterValue]:
        """Return the defaults with the next pair."""
        pair = next(self._pairs, None)
        self.finished = pair is None
        return {**self._defaults, **(pair or {})}


def grid_names(problem: Problem) -> tuple[str, str] | None:
    """Return the two parameters of the grid; None if the problem lacks them."""
    ranges = _integer_ranges(problem)
    return next((pair for pair in GRID_NAMES if set(pair) <= ranges.keys()), None)


def _integer_ranges(problem: Problem) -> dict[str, tuple[int, int]]:
    """Return the range of each integer that a few random configurations have."""
    ranges: dict[str, tuple[int, int]] = {}
    random = np.random.default_rng(0)
    for _ in range(RANDOM_CONFIGURATIONS):
        trial = RandomTrial(random)
        problem.define(trial)
        ranges |= trial.integer_ranges
    return ranges


def _pairs(problem: Problem) -> Iterator[dict[str, ParameterValue]]:
    names = grid_names(problem)
    if names is None:
        return
    ranges = _integer_ranges(problem)
    first_values, second_values = (_powers_of_two(*ranges[name]) for name in names)
    for first in first_values:
        for second in second_values:
            yield {names[0]: first, names[1]: second}


def _powers_of_two(low: int, high: int) -> Sequence[int]:
    return [2**power for power in range(math.ceil(math.log2(max(1, low))), math.floor(math.log2(high)) + 1)]
