"""Random configurations of optimizations. A configuration depends on the seed and the number of its trial only."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from search_spaces import NumberRange, ParameterValue, ValueTrial
from storage.errors import StorageError
from storage.service.optimizations.records import Draw
from tuner.service.optimizer.settings import RANDOM, OptimizerSettings, read_spec

MOST_TRIES = 1000
"""Draws of one configuration that may break a rule of the space."""

CHECKED, LEAST_ALLOWED = 200, 10
"""Of so many draws, so many have to break no rule. `MOST_TRIES` draws are then enough for certain."""

MOST_KNOWN = 2000
"""Optimizations whose settings are kept in memory."""


class NoConfiguration(StorageError):
    """The rules of a space exclude every configuration that was drawn."""


class _RandomTrial(ValueTrial):
    """A trial with independent values: numbers are uniform over their range, or over its logarithm."""

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws

    def choose(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        """Return a choice."""
        return self._draws.choice(choices)

    def choose_number(self, name: str, numbers: NumberRange) -> float:
        """Return a number."""
        low, high = numbers.low, numbers.high
        if numbers.log:
            half = 0.5 if numbers.integer else 0.0
            value = math.exp(self._draws.uniform(math.log(low - half), math.log(high + half)))
            return min(max(round(value) if numbers.integer else value, low), high)
        if numbers.step is None:
            return self._draws.uniform(low, high)
        count = math.floor((high - low) / numbers.step + 1e-9)
        return low + numbers.step * self._draws.randrange(count + 1)


def random_config(settings: OptimizerSettings, number: int) -> dict[str, ParameterValue]:
    """Return the random configuration of a trial, which breaks no rule.

    Raises:
        NoConfiguration: if the rules exclude `MOST_TRIES` draws.
    """
    draws = random.Random(f"{settings.seed}/{number}")
    for _ in range(MOST_TRIES):
        config = settings.space.suggest(_RandomTrial(draws))
        if not settings.space.violations(config):
            return config
    raise NoConfiguration(f"the rules exclude {MOST_TRIES} of {MOST_TRIES} random configurations; correct the rules")


def check_rules(settings: OptimizerSettings) -> None:
    """Refuse a space whose rules exclude almost everything.

    Raises:
        NoConfiguration: with the share that is excluded.
    """
    draws = random.Random(f"{settings.seed}/rules")
    configs = (settings.space.suggest(_RandomTrial(draws)) for _ in range(CHECKED))
    excluded = sum(bool(settings.space.violations(config)) for config in configs)
    if CHECKED - excluded < LEAST_ALLOWED:
        rule = f"the rules exclude {excluded} of {CHECKED} random configurations"
        raise NoConfiguration(f"{rule}; use conditions or smaller ranges in place of rules")


class Draws:
    """Draws for the store, see `storage.service.optimizations.records.Drawer`; used by one thread at a time."""

    def __init__(self) -> None:
        self._settings: OrderedDict[int, OptimizerSettings] = OrderedDict()

    def knows(self, optimization: int) -> bool:
        """Return whether the settings of an optimization are in memory; if so, they are the last to be forgotten."""
        known = optimization in self._settings
        if known:
            self._settings.move_to_end(optimization)
        return known

    def learn(self, optimization: int, spec: Mapping[str, Any]) -> None:
        """Read the settings of an optimization."""
        self._settings[optimization] = read_spec(spec)

    def settings(self, optimization: int) -> OptimizerSettings:
        """Return the settings of a known optimization."""
        return self._settings[optimization]

    def objectives(self, optimization: int) -> list[str]:
        """Return the metrics that a trial needs to succeed."""
        return [objective.metric for objective in self._settings[optimization].objectives]

    def draw(self, optimization: int, number: int) -> Draw | None:
        """Return a random configuration; None if a model has to propose it.

        Raises:
            NoConfiguration: as `random_config`.
        """
        settings = self._settings[optimization]
        return Draw(random_config(settings, number)) if settings.sampler == RANDOM else None

    def forget(self) -> None:
        """Forget the settings that were used longest ago, beyond `MOST_KNOWN`."""
        while len(self._settings) > MOST_KNOWN:
            self._settings.popitem(last=False)
