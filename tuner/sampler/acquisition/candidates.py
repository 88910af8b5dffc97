"""Configurations to choose among: drawn at random, or neighbours of good ones, conditions respected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from tuner.sampler.surrogate.encoding import Params, choice_index, number_at, place

Define: TypeAlias = Callable[[Any], object]
"""A search space, define-by-run: asks a trial for every parameter that counts."""

STEP = 0.15
"""Standard deviation of a neighbour's number, in shares of its range."""


class CandidateTrial:
    """A trial that draws: given values are taken where they are in the space, the rest is random."""

    def __init__(self, rng: np.random.Generator, given: Params, moved: Collection[str] = ()) -> None:
        self._rng = rng
        self._given = given
        self._moved = moved
        self.params: dict[str, Any] = {}
        self.distributions: dict[str, BaseDistribution] = {}

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return the given choice or, if it is to be moved, another one."""
        distribution = CategoricalDistribution(tuple(choices))
        given = choice_index(distribution, self._given[name]) if name in self._given else None
        if given is None:
            index = int(self._rng.integers(len(choices)))
        elif name in self._moved and len(choices) > 1:
            index = (given + 1 + int(self._rng.integers(len(choices) - 1))) % len(choices)
        else:
            index = given
        return self._note(name, distribution, choices[index])

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return the given integer or, if it is to be moved, one near it."""
        return int(self.number(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return the given number or, if it is to be moved, one near it."""
        return float(self.number(name, FloatDistribution(low, high, log=log, step=step)))

    def number(self, name: str, distribution: BaseDistribution) -> int | float:
        """Return the given number or, if it is to be moved, one near it; a random one if none is given."""
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        given = self._given.get(name)
        if given is None or not distribution.low <= given <= distribution.high:
            value = number_at(distribution, float(self._rng.random()))
        elif name in self._moved:
            scale = STEP if self._rng.random() < 0.5 else STEP / 5
            value = number_at(distribution, place(distribution, given) + float(self._rng.normal(0.0, scale)))
        else:
            value = given
        self._note(name, distribution, value)
        return value

    def _note(self, name: str, distribution: BaseDistribution, value: Any) -> Any:
        self.params[name] = value
        self.distributions[name] = distribution
        return value


class CandidateSpace:
    """Where configurations come from: a define-by-run function, or the parameters that the history has shown."""

    def __init__(self, define: Define | None, allowed: Callable[[Params], bool] | None = None) -> None:
        self._define = define
        self._allowed = allowed
        self.distributions: dict[str, BaseDistribution] = {}
        self._shown: list[Params] = []

    @property
    def known(self) -> bool:
        """Whether there is anything to draw from."""
        return self._define is not None or bool(self._shown)

    def learn(self, distributions: Mapping[str, BaseDistribution], shown: Sequence[Params]) -> None:
        """Take up what a history has shown."""
        self.distributions.update(distributions)
        self._shown = list(shown)

    def draw(
        self, rng: np.random.Generator, given: Params | None = None, moved: Collection[str] = (), checked: bool = True
    ) -> Params | None:
        """Return a configuration; None where it breaks a rule, if `checked`."""
        trial = CandidateTrial(rng, given or {}, moved)
        if self._define is not None:
            self._define(trial)
        else:
            self._like_shown(trial, rng, given)
        self.distributions.update(trial.distributions)
        return trial.params if not checked or self.allows(trial.params) else None

    def allows(self, params: Params) -> bool:
        """Return whether a configuration breaks no rule."""
        return self._allowed is None or self._allowed(params)

    def _like_shown(self, trial: CandidateTrial, rng: np.random.Generator, given: Params | None) -> None:
        """Ask for the parameters that some trial of the history had: its conditions held."""
        if not self._shown:
            return
        names = given if given is not None else self._shown[int(rng.integers(len(self._shown)))]
        for name in names:
            distribution = self.distributions[name]
            if isinstance(distribution, CategoricalDistribution):
                trial.suggest_categorical(name, distribution.choices)
            else:
                trial.number(name, distribution)

    def neighbour(self, rng: np.random.Generator, of: Params, checked: bool = True) -> Params | None:
        """Return a configuration that differs from one in a parameter or a few; see `draw`."""
        if not of:
            return self.draw(rng, checked=checked)
        count = 1 + int(rng.geometric(0.5)) if rng.random() < 0.5 else 1
        moved = set(rng.choice(sorted(of), size=min(count, len(of)), replace=False))
        return self.draw(rng, of, moved, checked)


def opened_parameters(configs: Sequence[Params]) -> Counter[tuple[str, Any]]:
    """Return how many parameters each choice opens, as the configurations show it: they are there only beside it."""
    found: Counter[tuple[str, Any]] = Counter()
    for name in {name for config in configs for name in config}:
        having = [config for config in configs if name in config]
        if len(having) == len(configs):
            continue
        beside = {pair for pair in having[0].items() if pair[0] != name}
        for config in having:
            beside &= config.items()
        found.update(pair for pair in beside if any(pair not in config.items() for config in configs))
    return found
