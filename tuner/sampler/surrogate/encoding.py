"""Configurations as rows of numbers, so that the squared distance of two rows is a weighted sum over parameters.

A numeric parameter is its place in its range, 0 to 1 (on a logarithmic scale if the range is one); a categorical one
has a column a choice. Two configurations that differ in a choice, or of which only one has the parameter, are as far
apart in it as the two ends of a range; two that both lack it do not differ (Gower, "A general coefficient of
similarity", Biometrics 27, 1971).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

Params: TypeAlias = Mapping[str, Any]
Matrix: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = NDArray[np.float64]

KNOTS = 5
REACH = 0.4
"""Length scale of a single number's effect, in shares of its range."""

DECIMALS = 10
"""Of a number with a step: 0.5 and 42 steps of 0.01 are 0.92, not 0.9199999999999999."""

_HALF = math.sqrt(0.5)
_AWAY = math.sqrt(0.75)
"""The mark of a number that is lacking: with the middle of the range in its place it is 0.75 to 1 away from any."""


class Encoder:
    """Turns parameters into rows.

    `owner[c]` is the index of the parameter that column c of the rows belongs to, `effect_owner` that of the effects'.
    """

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        self.distributions = dict(sorted(distributions.items()))
        self.names = tuple(self.distributions)
        owner: list[int] = []
        self._first: list[int] = []
        for index, distribution in enumerate(self.distributions.values()):
            self._first.append(len(owner))
            owner += [index] * (len(distribution.choices) if isinstance(distribution, CategoricalDistribution) else 2)
        self.owner = np.array(owner, dtype=np.int64)
        widths = [
            len(d.choices) if isinstance(d, CategoricalDistribution) else KNOTS for d in self.distributions.values()
        ]
        self.effect_owner = np.repeat(np.arange(len(widths)), widths)

    def rows(self, configs: Sequence[Params]) -> Matrix:
        """Return one row a configuration, shape (configurations, columns); names that are not known are passed over."""
        found = np.zeros((len(configs), len(self.owner)))
        for (name, distribution), first in zip(self.distributions.items(), self._first, strict=True):
            for row, config in enumerate(configs):
                if isinstance(distribution, CategoricalDistribution):
                    index = choice_index(distribution, config[name]) if name in config else None
                    if index is not None:
                        found[row, first + index] = _HALF
                elif config.get(name) is None:
                    found[row, first : first + 2] = 0.5, _AWAY
                else:
                    found[row, first] = place(distribution, config[name])
        return found

    def both(self, configs: Sequence[Params]) -> tuple[Matrix, Matrix]:
        """Return `rows` and `effects`."""
        return self.rows(configs), self.effects(configs)

    def effects(self, configs: Sequence[Params]) -> Matrix:
        """Return features whose inner products say how alike configurations are in single parameters.

        A column a choice, and for a number its place among `KNOTS` knots, made smooth: a linear model of them is a sum
        of effects, one a parameter, where a parameter that a configuration lacks has none. Shape (configurations,
        features), scaled so that the sum has a variance of about 1.
        """
        blocks = []
        knots = np.linspace(0.0, 1.0, KNOTS)
        smooth = np.linalg.cholesky(
            np.exp(-0.5 * ((knots[:, None] - knots[None, :]) / REACH) ** 2) + 1e-6 * np.eye(KNOTS)
        )
        for name, distribution in self.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                block = np.zeros((len(configs), len(distribution.choices)))
                for row, config in enumerate(configs):
                    index = choice_index(distribution, config[name]) if name in config else None
                    if index is not None:
                        block[row, index] = 1.0
            else:
                block = np.zeros((len(configs), KNOTS))
                for row, config in enumerate(configs):
                    if config.get(name) is not None:
                        where = min(max(place(distribution, config[name]), 0.0), 1.0) * (KNOTS - 1)
                        left = min(int(where), KNOTS - 2)
                        block[row, left], block[row, left + 1] = left + 1 - where, where - left
                block = block @ smooth
            blocks.append(block)
        return np.hstack(blocks) / math.sqrt(max(len(blocks), 1)) if blocks else np.zeros((len(configs), 0))


def choice_index(distribution: CategoricalDistribution, value: object) -> int | None:
    """Return the index of a choice; None if it is none. 1, 1.0 and True are three choices."""
    for index, choice in enumerate(distribution.choices):
        if type(choice) is type(value) and choice == value:
            return index
    return None


def place(distribution: BaseDistribution, value: float) -> float:
    """Return where in its range a number lies, 0 to 1."""
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    if high <= low:
        return 0.5
    if distribution.log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (float(value) - low) / (high - low)


def number_at(distribution: BaseDistribution, where: float) -> int | float:
    """Return the number of a range that lies nearest to a place in it."""
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    where = min(max(where, 0.0), 1.0)
    if distribution.log:
        value = math.exp(math.log(low) + where * (math.log(high) - math.log(low)))
    else:
        value = low + where * (high - low)
    if distribution.step is not None and not distribution.log:
        value = round(low + round((value - low) / distribution.step) * distribution.step, DECIMALS)
    value = min(max(value, low), high)
    return round(value) if isinstance(distribution, IntDistribution) else value
