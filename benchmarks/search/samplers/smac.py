"""SMAC3 (Lindauer et al., JMLR 2022) with its random forest and its defaults, as the winner of InferenceBench uses it.

SMAC is told every parameter without the conditions and rules of the space, which ConfigSpace cannot express in general.
A parameter that does not apply has no effect, and is reported with its default. SMAC has no constraints: a trial costs
the inverse of its score, and an infeasible one e times as much as the worst feasible one.
"""

import math
import tempfile
from collections.abc import Mapping
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.simulated.problem import SimulatedProblem
from benchmarks.search.samplers.planned import PlannedSampler
from search_spaces import Parameter, ParameterValue
from search_spaces.parameter import same_value

_SEED = 0
"""The seed that SMAC gives every trial of a scenario without noise."""


class SmacSampler(PlannedSampler):
    """The sampler; it maximises a study's only objective, the logarithm of the score."""

    def __init__(self, problem: Problem, seed: int, startup_trials: int) -> None:
        # imported here, because SMAC is optional
        import ConfigSpace
        from smac import HyperparameterOptimizationFacade, Scenario

        assert isinstance(problem, SimulatedProblem)
        super().__init__(seed)
        self._parameters = {each.name: each for each in problem.space.parameters}
        self._space = ConfigSpace.ConfigurationSpace(seed=seed)
        defaults = {**problem.space.known_defaults(), **problem.defaults()[1]}
        for parameter in self._parameters.values():
            self._space.add(_hyperparameter(parameter, defaults.get(parameter.name)))
        self._folder = tempfile.TemporaryDirectory(prefix="tuner-smac-")
        scenario = Scenario(
            self._space, output_directory=self._folder.name, deterministic=True, n_trials=10**6, seed=seed
        )
        facade = HyperparameterOptimizationFacade
        design = facade.get_initial_design(scenario, n_configs=startup_trials)
        self._smac = facade(scenario, lambda config, seed: 0.0, initial_design=design, logging_level=False)
        self._told: set[int] = set()

    def plan(self, study: Study) -> dict[str, ParameterValue]:
        """Return what SMAC asks for, after telling it the trials that ended."""
        from smac.runhistory.dataclasses import TrialInfo, TrialValue

        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        worst = max((cost for trial in trials if (cost := _cost(trial)) is not None), default=1.0)
        for trial in trials:
            if trial.number not in self._told:
                self._told.add(trial.number)
                cost = _cost(trial)
                info = TrialInfo(self._configuration(trial.params), seed=_SEED)
                self._smac.tell(info, TrialValue(cost=math.e * worst if cost is None else cost), save=False)
        asked = dict(self._smac.ask().config)
        return {name: _value(parameter, asked[name]) for name, parameter in self._parameters.items()}

    def _configuration(self, params: Mapping[str, Any]) -> Any:
        """Return parameters as SMAC's configuration, which has the others' defaults."""
        from ConfigSpace import Configuration

        values = dict(self._space.get_default_configuration())
        values |= {name: _code(self._parameters[name], value) for name, value in params.items()}
        return Configuration(self._space, values=values)


def _cost(trial: FrozenTrial) -> float | None:
    """Return the inverse of a trial's score; None if it is infeasible."""
    if not trial.values or any(value > 0 for value in trial.constraints.values()):
        return None
    return math.exp(-trial.values[0])


def _is_listed(parameter: Parameter) -> bool:
    """Return whether SMAC gets a number's place in its range, because the range has steps."""
    return not parameter.choices and parameter.spec.step is not None


def _hyperparameter(parameter: Parameter, default: ParameterValue) -> Any:
    import ConfigSpace

    name, spec = parameter.name, parameter.spec
    at = _code(parameter, default) if parameter.contains(default) else None
    if parameter.choices:
        return ConfigSpace.Categorical(name, list(range(len(parameter.choices))), default=at or 0)
    if _is_listed(parameter):
        return ConfigSpace.Integer(name, (0, len(parameter.listed()) - 1), default=at)
    kind = ConfigSpace.Integer if parameter.kind == "int" else ConfigSpace.Float
    return kind(name, (spec.low, spec.high), log=bool(spec.log), default=at)


def _code(parameter: Parameter, value: ParameterValue) -> Any:
    """Return a value as SMAC sees it: choices and steps by their place."""
    if parameter.choices:
        return next(place for place, choice in enumerate(parameter.values) if same_value(choice, value))
    if _is_listed(parameter):
        assert isinstance(value, int | float)
        return round((value - float(parameter.spec.low or 0)) / float(parameter.spec.step or 1))
    return value


def _value(parameter: Parameter, code: Any) -> ParameterValue:
    if parameter.choices or _is_listed(parameter):
        return parameter.listed()[int(code)]
    return int(code) if parameter.kind == "int" else float(code)
