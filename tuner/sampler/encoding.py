"""Encode configurations as numbers for the Gaussian processes.

Each configuration x has a row r(x), for distances, and effect features φ(x), for a linear model. Each column of either
belongs to one parameter p. The squared distance of two rows in one parameter,

    d_p²(x, x') = |r_p(x) - r_p(x')|²,

is a Gower-like dissimilarity between 0 and 1 (Gower, "A general coefficient of similarity", Biometrics 27, 1971):

    two numbers             squared difference of their positions in the range, 0 to 1
    two choices             0 if equal, 1 if not
    a number or none        0.75 to 1
    a choice or none        0.5
    both configurations lack the parameter      0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

Params: TypeAlias = Mapping[str, Any]
"""A configuration: the values of its parameters by name."""
Matrix: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = NDArray[np.float64]

KNOTS = 5
"""Knots of a number's effect, evenly spaced over its range."""
KNOT_LENGTHSCALE = 0.4
"""Lengthscale of a number's effect, as a share of its range."""
DECIMALS = 10
"""Decimals of a number with a step: 0.5 plus 42 steps of 0.01 is 0.92, not 0.9199999999999999."""

_CHOICE = math.sqrt(0.5)
"""Value in the column of the chosen value: two different choices have the squared distance 1/2 + 1/2."""
_ABSENT = 0.5, math.sqrt(0.75)
"""Row of an absent number, where a present one has (position, 0)."""


def _knot_factor() -> Matrix:
    """Return L with L Lᵀ = exp(-(k_i - k_j)² / (2 ℓ²)) + 1e-6 I over the knots k, shape (KNOTS, KNOTS)."""
    knots = np.linspace(0.0, 1.0, KNOTS)
    squared = ((knots[:, None] - knots[None, :]) / KNOT_LENGTHSCALE) ** 2
    return np.asarray(np.linalg.cholesky(np.exp(-0.5 * squared) + 1e-6 * np.eye(KNOTS)), dtype=np.float64)


_KNOT_FACTOR = _knot_factor()


@dataclass(frozen=True)
class EncodedConfigurations:
    """Encoded configurations: `rows`, shape (n, columns), and `effects`, shape (n, features)."""

    rows: Matrix
    effects: Matrix

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, positions: Sequence[int]) -> EncodedConfigurations:
        """Return the configurations at some positions, in that order."""
        return EncodedConfigurations(self.rows[positions], self.effects[positions])

    @staticmethod
    def stack(parts: Iterable[EncodedConfigurations]) -> EncodedConfigurations:
        """Return several sets of configurations as one."""
        every = list(parts)
        return EncodedConfigurations(
            np.vstack([part.rows for part in every]), np.vstack([part.effects for part in every])
        )


@dataclass(frozen=True)
class ColumnParameters:
    """The index of the parameter that each column belongs to, of `rows` and of `effects`."""

    rows: NDArray[np.int64]
    effects: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number of parameters."""
        return int(self.rows.max()) + 1 if len(self.rows) else 0


class Encoder:
    """Encodes configurations of known parameters; parameters without a distribution are ignored."""

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        self.distributions = dict(sorted(distributions.items()))
        self.names = tuple(self.distributions)
        every = self.distributions.values()
        widths = [len(d.choices) if isinstance(d, CategoricalDistribution) else 2 for d in every]
        effect_widths = [len(d.choices) if isinstance(d, CategoricalDistribution) else KNOTS for d in every]
        self._first_columns = [sum(widths[:index]) for index in range(len(widths))]
        self.columns = ColumnParameters(
            np.repeat(np.arange(len(widths)), widths), np.repeat(np.arange(len(widths)), effect_widths)
        )

    def encode(self, configs: Sequence[Params]) -> EncodedConfigurations:
        """Return configurations encoded."""
        return EncodedConfigurations(self.rows(configs), self._effects(configs))

    def rows(self, configs: Sequence[Params]) -> Matrix:
        """Return the rows r(x) of configurations, shape (configurations, columns)."""
        rows = np.zeros((len(configs), len(self.columns.rows)))
        for (name, distribution), first in zip(self.distributions.items(), self._first_columns, strict=True):
            for row, config in enumerate(configs):
                if isinstance(distribution, CategoricalDistribution):
                    index = choice_index(distribution, config[name]) if name in config else None
                    if index is not None:
                        rows[row, first + index] = _CHOICE
                elif config.get(name) is None:
                    rows[row, first : first + 2] = _ABSENT
                else:
                    rows[row, first] = to_position(distribution, config[name])
        return rows

    def _effects(self, configs: Sequence[Params]) -> Matrix:
        """Return the effect features φ(x) of configurations, shape (configurations, features).

        A choice has one feature, 1 or 0. A number has the features h(position) L: h are the weights of a linear
        interpolation between `KNOTS` knots, L is the factor of `_knot_factor`. So φ_p(x)·φ_p(x') is the squared
        exponential correlation of two positions, interpolated. An absent parameter has only zeros. All features are
        divided by the square root of the number of parameters P: Σ_p φ_p(x)·φ_p(x) is at most about 1.
        """
        blocks = []
        for name, distribution in self.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                blocks.append(_choice_effects(distribution, name, configs))
            else:
                blocks.append(_number_effects(distribution, name, configs))
        return np.hstack(blocks) / math.sqrt(max(len(blocks), 1)) if blocks else np.zeros((len(configs), 0))


def _choice_effects(distribution: CategoricalDistribution, name: str, configs: Sequence[Params]) -> Matrix:
    block = np.zeros((len(configs), len(distribution.choices)))
    for row, config in enumerate(configs):
        index = choice_index(distribution, config[name]) if name in config else None
        if index is not None:
            block[row, index] = 1.0
    return block


def _number_effects(distribution: BaseDistribution, name: str, configs: Sequence[Params]) -> Matrix:
    block = np.zeros((len(configs), KNOTS))
    for row, config in enumerate(configs):
        if config.get(name) is not None:
            knot = min(max(to_position(distribution, config[name]), 0.0), 1.0) * (KNOTS - 1)
            left = min(int(knot), KNOTS - 2)
            block[row, left], block[row, left + 1] = left + 1 - knot, knot - left
    return np.asarray(block @ _KNOT_FACTOR)


def choice_index(distribution: CategoricalDistribution, value: object) -> int | None:
    """Return the index of a value among the choices, or None; 1, 1.0 and True are three choices."""
    for index, choice in enumerate(distribution.choices):
        if type(choice) is type(value) and choice == value:
            return index
    return None


def to_position(distribution: BaseDistribution, value: float) -> float:
    """Return the position of a number in its range, 0 to 1: of its logarithm, if the range is logarithmic."""
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    if high <= low:
        return 0.5
    if distribution.log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (float(value) - low) / (high - low)


def from_position(distribution: BaseDistribution, position: float) -> int | float:
    """Return the number of a range that is nearest to a position; positions outside 0 to 1 are clipped."""
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    position = min(max(position, 0.0), 1.0)
    if distribution.log:
        value = math.exp(math.log(low) + position * (math.log(high) - math.log(low)))
    else:
        value = low + position * (high - low)
    if distribution.step is not None and not distribution.log:
        value = round(low + round((value - low) / distribution.step) * distribution.step, DECIMALS)
    value = min(max(value, low), high)
    return round(value) if isinstance(distribution, IntDistribution) else value
