"""The base class of samplers that choose a whole configuration at once."""

from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from search_spaces import ParameterValue


class PlannedSampler(BaseSampler):
    """A sampler that chooses all parameters of a trial before the trial suggests the first one.

    Attributes:
        finished: whether no configuration is left.
    """

    finished = False

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._plan: dict[str, ParameterValue] = {}

    def plan(self, study: Study) -> dict[str, ParameterValue]:
        """Return the parameters of the next trial; missing ones get their default."""
        raise NotImplementedError

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Plan the trial."""
        self._plan = self.plan(study)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return an empty space: `sample_independent` returns every parameter."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return no parameters."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the planned value, or the default if the plan has none in the distribution."""
        if param_name in self._plan:
            value: Any = self._plan[param_name]
            if param_distribution._contains(param_distribution.to_internal_repr(value)):
                return value
        return _default_value(param_distribution)


def _default_value(distribution: BaseDistribution) -> Any:
    """Return None if it is a choice, as it stands for the engine's default; otherwise the first value."""
    if isinstance(distribution, CategoricalDistribution):
        return None if None in distribution.choices else distribution.choices[0]
    return distribution.to_external_repr(getattr(distribution, "low"))  # noqa: B009  both kinds of numbers have it
