"""Climbing: from some configurations, parameter by parameter, to such as are thought better.

A round tries every choice of every categorical parameter and some places in the range of every number, one change at a
time, and keeps the best change that breaks no rule. Rows are put together from blocks, one a change, because asking the
space for each of some hundred configurations would take longer than all else; only what is kept is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution

from tuner.sampler.acquisition.candidates import CandidateSpace
from tuner.sampler.surrogate.encoding import Encoder, Matrix, Params, Vector, number_at

PLACES = 6
"""Places in the range of a number that a round tries."""
CLIMBERS, CLIMBS, TRIES = 4, 8, 5
"""Configurations that climb, rounds at most, and changes of one round that may break a rule."""
LEAST_GAIN = 1e-3

AcquisitionFunction: TypeAlias = Callable[[Matrix, Matrix], Vector]
"""Says how good encoded configurations are: rows and effects in, one number each out."""


class Changes:
    """Every change of one parameter that a round tries, encoded."""

    def __init__(self, encoder: Encoder, rng: np.random.Generator) -> None:
        self.changes: list[tuple[str, Any]] = []
        for name, distribution in encoder.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                self.changes += [(name, choice) for choice in distribution.choices]
            else:
                where = (np.arange(PLACES) + rng.random(PLACES)) / PLACES
                self.changes += [(name, number_at(distribution, float(place))) for place in where]
        alone = [{name: value} for name, value in self.changes]
        self._rows, self._effects = encoder.both(alone)
        places = np.array([encoder.names.index(name) for name, _ in self.changes])
        self._own: NDArray[np.bool_] = places[:, None] == encoder.owner[None, :]
        self._own_effects: NDArray[np.bool_] = places[:, None] == encoder.effect_owner[None, :]

    def of(self, row: Vector, effects: Vector) -> tuple[Matrix, Matrix]:
        """Return the rows and effects of a configuration after each change, shape (changes, …)."""
        return np.where(self._own, self._rows, row), np.where(self._own_effects, self._effects, effects)


def local_search(
    space: CandidateSpace,
    encoder: Encoder,
    merit: AcquisitionFunction,
    starts: Sequence[Params],
    rng: np.random.Generator,
) -> list[Params]:
    """Return where some configurations get to, and every step on the way."""
    found: list[Params] = []
    climbers = [(start, float(value)) for start, value in zip(starts, merit(*encoder.both(starts)), strict=True)]
    changes = Changes(encoder, rng)
    for _ in range(CLIMBS):
        steps = _steps(space, encoder, merit, changes, [config for config, _ in climbers], rng)
        values = merit(*encoder.both(steps)) if steps else np.zeros(0)
        gained = zip(steps, values, (before for _, before in climbers), strict=True)
        climbers = [(config, float(value)) for config, value, before in gained if value > before + LEAST_GAIN]
        found += [config for config, _ in climbers]
        if not climbers:
            break
    return found


def _steps(
    space: CandidateSpace,
    encoder: Encoder,
    merit: AcquisitionFunction,
    changes: Changes,
    climbers: Sequence[Params],
    rng: np.random.Generator,
) -> list[Params]:
    """Return each climber after its best change; itself where none keeps the rules."""
    rows, effects = encoder.both(climbers)
    both = [changes.of(row, effect) for row, effect in zip(rows, effects, strict=True)]
    merits = merit(np.vstack([rows for rows, _ in both]), np.vstack([effects for _, effects in both]))
    found = []
    for config, values in zip(climbers, merits.reshape(len(climbers), -1), strict=True):
        found.append(_best(space, config, changes.changes, values, rng))
    return found


def _best(
    space: CandidateSpace, config: Params, changes: Sequence[tuple[str, Any]], values: Vector, rng: np.random.Generator
) -> Params:
    tries = 0
    for place in np.argsort(-values):
        name, value = changes[place]
        if name not in config or (config[name] == value and type(config[name]) is type(value)):
            continue
        changed = space.draw(rng, {**config, name: value})
        if changed is not None:
            return changed
        tries += 1
        if tries == TRIES:
            break
    return config
