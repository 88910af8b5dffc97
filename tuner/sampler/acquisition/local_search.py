"""Coordinate-wise local search over the acquisition function.

A round evaluates every choice of every categorical parameter and some positions of every number, one change at a time,
and takes the best change that breaks no rule. The encoding of a changed configuration is assembled from columns of the
changed parameter: evaluating the define-by-run space for some hundred configurations a round would take longer than
all else. Only the chosen change is checked against the space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution

from tuner.sampler.acquisition.candidates import CandidateSpace
from tuner.sampler.surrogate.encoding import EncodedConfigurations, Encoder, Params, Vector, from_position

POSITIONS = 6
"""Number of positions of a numeric parameter that a round evaluates."""
STARTS = 4
"""Number of configurations that local searches start from."""
ROUNDS = 8
"""Largest number of rounds."""
REJECTIONS = 5
"""Best changes of one round that are checked against the rules; if all break one, the configuration stays."""
LEAST_INCREASE = 1e-3
"""Increase of the acquisition value, a logarithm, below which a search ends."""

AcquisitionFunction: TypeAlias = Callable[[EncodedConfigurations], Vector]
"""Returns the acquisition values of n encoded configurations, shape (n,)."""


class SingleChanges:
    """All changes of one parameter that a search evaluates, encoded.

    Args:
        encoder: of the configurations.
        rng: draws the positions of numbers, one in each of `POSITIONS` equal parts of the range.
    """

    def __init__(self, encoder: Encoder, rng: np.random.Generator) -> None:
        self.changes: list[tuple[str, Any]] = []
        """Name and new value of each change."""
        for name, distribution in encoder.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                self.changes += [(name, choice) for choice in distribution.choices]
            else:
                positions = (np.arange(POSITIONS) + rng.random(POSITIONS)) / POSITIONS
                self.changes += [(name, from_position(distribution, float(position))) for position in positions]
        self._encoded = encoder.encode([{name: value} for name, value in self.changes])
        parameters = np.array([encoder.names.index(name) for name, _ in self.changes])
        self._changed_columns: NDArray[np.bool_] = parameters[:, None] == encoder.columns.rows[None, :]
        self._changed_features: NDArray[np.bool_] = parameters[:, None] == encoder.columns.effects[None, :]

    def apply(self, row: Vector, effects: Vector) -> EncodedConfigurations:
        """Return one configuration, given encoded, after each of the changes."""
        return EncodedConfigurations(
            np.where(self._changed_columns, self._encoded.rows, row),
            np.where(self._changed_features, self._encoded.effects, effects),
        )


def local_search(
    space: CandidateSpace,
    encoder: Encoder,
    acquisition: AcquisitionFunction,
    starts: Sequence[Params],
    rng: np.random.Generator,
) -> list[Params]:
    """Return the configurations that the searches reach, those after each round included.

    Args:
        space: draws the parameters that a changed choice requires, and checks the rules.
        encoder: of the configurations.
        acquisition: the function to maximise.
        starts: where the searches start.
        rng: of the draws.
    """
    reached: list[Params] = []
    initial = acquisition(encoder.encode(starts))
    current = [(start, float(value)) for start, value in zip(starts, initial, strict=True)]
    changes = SingleChanges(encoder, rng)
    for _ in range(ROUNDS):
        changed = _best_changes(space, encoder, acquisition, changes, [config for config, _ in current], rng)
        values = acquisition(encoder.encode(changed)) if changed else np.zeros(0)
        pairs = zip(changed, values, (before for _, before in current), strict=True)
        current = [(config, float(value)) for config, value, before in pairs if value > before + LEAST_INCREASE]
        reached += [config for config, _ in current]
        if not current:
            break
    return reached


def _best_changes(
    space: CandidateSpace,
    encoder: Encoder,
    acquisition: AcquisitionFunction,
    changes: SingleChanges,
    configs: Sequence[Params],
    rng: np.random.Generator,
) -> list[Params]:
    """Return each configuration after its best change."""
    encoded = encoder.encode(configs)
    changed = [changes.apply(row, effects) for row, effects in zip(encoded.rows, encoded.effects, strict=True)]
    values = acquisition(EncodedConfigurations.stack(changed)).reshape(len(configs), -1)
    return [
        _best_change(space, config, changes.changes, each, rng) for config, each in zip(configs, values, strict=True)
    ]


def _best_change(
    space: CandidateSpace, config: Params, changes: Sequence[tuple[str, Any]], values: Vector, rng: np.random.Generator
) -> Params:
    """Return a configuration after the change with the highest value that breaks no rule; itself if there is none."""
    rejections = 0
    for index in np.argsort(-values):
        name, value = changes[index]
        if name not in config or (config[name] == value and type(config[name]) is type(value)):
            continue
        changed = space.draw(rng, {**config, name: value})
        if changed is not None:
            return changed
        rejections += 1
        if rejections == REJECTIONS:
            break
    return config
