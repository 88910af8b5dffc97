"""Candidates of a search space: at random, as neighbours of a configuration, and those of the first trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection

from tuner.sampler.encoding import Encoder, Params, Vector, choice_index, from_position, to_position
from tuner.sampler.history import History, objective_scales
from tuner.sampler.prior import PriorCache, rank_by_prediction
from tuner.sampler.transfer import Transfer

DefineByRun: TypeAlias = Callable[[Any], object]
"""A define-by-run search space: calls `suggest_…` of an Optuna trial for each parameter that applies."""

NEIGHBOUR_STEP = 0.15
"""Standard deviation of a neighbour's number, as a share of its range; half of the steps are a fifth of it."""


class CandidateTrial:
    """A trial that suggests given values, moves some of them, and draws all others at random.

    Args:
        rng: of the draws.
        given: values by name; a value outside the space is replaced by a random one.
        moved: names of given parameters that change: a choice to another one, a number to one near it.
    """

    def __init__(self, rng: np.random.Generator, given: Params, moved: Collection[str] = ()) -> None:
        self._rng = rng
        self._given = given
        self._moved = moved
        self.params: dict[str, Any] = {}
        self.distributions: dict[str, BaseDistribution] = {}

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of the choices."""
        distribution = CategoricalDistribution(tuple(choices))
        given = choice_index(distribution, self._given[name]) if name in self._given else None
        if given is None:
            index = int(self._rng.integers(len(choices)))
        elif name in self._moved and len(choices) > 1:
            index = (given + 1 + int(self._rng.integers(len(choices) - 1))) % len(choices)
        else:
            index = given
        return self._record(name, distribution, choices[index])

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return an integer in [low, high]."""
        return int(self.suggest_number(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number in [low, high]."""
        return float(self.suggest_number(name, FloatDistribution(low, high, log=log, step=step)))

    def suggest_number(self, name: str, distribution: BaseDistribution) -> int | float:
        """Return a number of a distribution."""
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        given = self._given.get(name)
        if given is None or not distribution.low <= given <= distribution.high:
            value = from_position(distribution, float(self._rng.random()))
        elif name in self._moved:
            scale = NEIGHBOUR_STEP if self._rng.random() < 0.5 else NEIGHBOUR_STEP / 5
            position = to_position(distribution, given) + float(self._rng.normal(0.0, scale))
            value = from_position(distribution, position)
        else:
            value = given
        self._record(name, distribution, value)
        return value

    def _record(self, name: str, distribution: BaseDistribution, value: Any) -> Any:
        self.params[name] = value
        self.distributions[name] = distribution
        return value


class CandidateSpace:
    """The space that candidates are drawn from: `define`, or else the parameters of the study's trials."""

    def __init__(self, define: DefineByRun | None, is_allowed: Callable[[Params], bool] | None = None) -> None:
        self._define = define
        self._is_allowed = is_allowed
        self.distributions: dict[str, BaseDistribution] = {}
        """The distributions of all parameters that were drawn or seen."""
        self._seen: list[Params] = []

    @property
    def is_known(self) -> bool:
        """Whether there is anything to draw from."""
        return self._define is not None or bool(self._seen)

    def update(self, distributions: Mapping[str, BaseDistribution], seen: Sequence[Params]) -> None:
        """Add the parameters and replace the configurations of a study's trials."""
        self.distributions.update(distributions)
        self._seen = list(seen)

    def draw(
        self, rng: np.random.Generator, given: Params | None = None, moved: Collection[str] = (), checked: bool = True
    ) -> Params | None:
        """Return a configuration, see `CandidateTrial`; None if it is `checked` and breaks a rule."""
        trial = CandidateTrial(rng, given or {}, moved)
        if self._define is not None:
            self._define(trial)
        else:
            self._define_as_seen(trial, rng, given)
        self.distributions.update(trial.distributions)
        return trial.params if not checked or self.allows(trial.params) else None

    def allows(self, params: Params) -> bool:
        """Return whether a configuration breaks no rule."""
        return self._is_allowed is None or self._is_allowed(params)

    def _define_as_seen(self, trial: CandidateTrial, rng: np.random.Generator, given: Params | None) -> None:
        """Suggest the parameters of the given configuration, or of a random trial: their conditions held there."""
        if not self._seen:
            return
        names = given if given is not None else self._seen[int(rng.integers(len(self._seen)))]
        for name in names:
            distribution = self.distributions[name]
            if isinstance(distribution, CategoricalDistribution):
                trial.suggest_categorical(name, distribution.choices)
            else:
                trial.suggest_number(name, distribution)

    def neighbour(self, rng: np.random.Generator, of: Params, count: int, checked: bool = True) -> Params | None:
        """Return a configuration that differs from another one in at most `count` parameters; see `draw`."""
        if not of:
            return self.draw(rng, checked=checked)
        moved = set(rng.choice(sorted(of), size=min(count, len(of)), replace=False))
        return self.draw(rng, of, moved, checked)


def few_changes(rng: np.random.Generator) -> int:
    """Return a number of changes: half of the time 1, otherwise 2 or more."""
    return 1 + int(rng.geometric(0.5)) if rng.random() < 0.5 else 1


def count_conditional_parameters(configs: Sequence[Params]) -> Counter[tuple[str, Any]]:
    """Return, for each choice (name, value), how many parameters occur only beside it in some configurations."""
    counts: Counter[tuple[str, Any]] = Counter()
    for name in {name for config in configs for name in config}:
        having = [config for config in configs if name in config]
        if len(having) == len(configs):
            continue
        beside = {pair for pair in having[0].items() if pair[0] != name}
        for config in having:
            beside &= config.items()
        counts.update(pair for pair in beside if any(pair not in config.items() for config in configs))
    return counts


SPACE_FILLING_DRAWS = 12
"""Number of random configurations; the one that is farthest from all trials is chosen."""
BEST_SHARE = 10
"""Inverse of the share of best predictions from which parallel workers get their first configurations."""


def best_of_sources(
    transfer: Transfer,
    space: CandidateSpace,
    history: History,
    directions: Sequence[StudyDirection],
    weights: Sequence[float] | None,
) -> Params:
    """Return the best configuration of the source studies that is untried and breaks no rule; {} if there is none."""
    excluded = history.excluded
    scales = objective_scales([(1.0,) * len(directions)], directions, weights)
    untried = (each for each in transfer.best(scales) if frozenset(each.items()) not in excluded)
    return next(filter(space.allows, untried), {})


def best_predicted(
    prior: PriorCache,
    space: CandidateSpace,
    history: History,
    directions: Sequence[StudyDirection],
    weights: Sequence[float] | None,
) -> Params:
    """Return the best predicted configuration that is untried; {} if there is none.

    If a configuration of the best tenth was tried or is running, return the untried one of the tenth that differs most.
    """
    excluded = history.excluded
    ranked = rank_by_prediction(prior, directions, weights)
    untried = [config for config in ranked if frozenset(config.items()) not in excluded]
    best = [config for config in ranked[: len(ranked) // BEST_SHARE] if prior.predicts_feasible(config)]
    tried = [config for config in best if config not in untried]
    left = [config for config in best if config in untried]
    return _farthest(space, left, tried) if left and tried else next(iter(untried), {})


def space_filling(space: CandidateSpace, history: History, rng: np.random.Generator) -> Params:
    """Return the random configuration with the largest distance to its nearest trial; {} if none could be drawn.

    Configurations nearer to an infeasible trial than to any feasible one are left out, if others remain.
    """
    draws = [config for _ in range(SPACE_FILLING_DRAWS) if (config := space.draw(rng)) is not None]
    if not draws or not history.tried:
        return draws[0] if draws else {}
    feasible, infeasible = history.feasible, history.infeasible
    if feasible and infeasible:
        nearer = _distances(space, draws, feasible) < _distances(space, draws, infeasible)
        draws = [config for config, near in zip(draws, nearer, strict=True) if near] or draws
    return _farthest(space, draws, history.tried)


def _distances(space: CandidateSpace, configs: Sequence[Params], others: Sequence[Params]) -> Vector:
    """Return the squared distance of each configuration to the nearest of the others, shape (configs,)."""
    encoder = Encoder(space.distributions)
    rows, other_rows = encoder.rows(configs), encoder.rows(others)
    return np.asarray(((rows[:, None, :] - other_rows[None, :, :]) ** 2).sum(axis=2).min(axis=1))


def _farthest(space: CandidateSpace, configs: Sequence[Params], others: Sequence[Params]) -> Params:
    """Return the configuration with the largest distance to the nearest of the others."""
    return configs[int(np.argmax(_distances(space, configs, others)))]
