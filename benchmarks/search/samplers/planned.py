"""The base of samplers that decide on a whole configuration at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from search_spaces import ParameterValue


class Planned(BaseSampler):
    """A sampler that decides on all parameters of a trial before the first is asked for."""

    finished = False
    """True once there is nothing left to propose."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._plan: dict[str, ParameterValue] = {}

    def plan(self, study: Study) -> dict[str, ParameterValue]:
        """Return the parameters of the next trial; what they lack is drawn at random."""
        raise NotImplementedError

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Make the plan."""
        self._plan = self.plan(study)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """See `BaseSampler`: every parameter is answered by itself."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """See `BaseSampler`."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return what was planned."""
        if param_name in self._plan:
            value: Any = self._plan[param_name]
            if param_distribution._contains(param_distribution.to_internal_repr(value)):
                return value
        return _first(param_distribution)


def _first(distribution: BaseDistribution) -> Any:
    """Return the value that stands for "leave it alone": the engine's default, or else the first."""
    if isinstance(distribution, CategoricalDistribution):
        return None if None in distribution.choices else distribution.choices[0]
    return distribution.to_external_repr(getattr(distribution, "low"))  # noqa: B009  of both kinds of numbers
