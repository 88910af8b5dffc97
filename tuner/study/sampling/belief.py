"""What is predicted of configurations: asked once each, guessed between those that were asked, ranked beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from optuna.study import StudyDirection

from tuner.study.sampling.candidates import Space
from tuner.study.sampling.encode import Encoder, Matrix, Params
from tuner.study.sampling.history import Scale, scales_of, squeezed

FAILS_UNSEEN = 0.15
"""Share of configurations that are thought to fail where nothing is predicted."""
FAILS_PREDICTED = (0.05, 0.85)
"""Chance of failing of a configuration that is predicted to run, and of one that is predicted to fail."""
TREES = 40
LEADERS = 12
GROWN = 1.15
"""Factor by which what is known has to grow before the guesses are learned anew."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a configuration: values of the objectives, or None where it would not run; constraints."""

    values: tuple[float, ...] | None
    constraints: Mapping[str, float]


Prior: TypeAlias = Callable[[Params], Prediction | None]


class Belief:
    """A prior with a memory. Rows have the predicted gain, each constraint, and the chance of failing."""

    def __init__(self, prior: Prior | None) -> None:
        self._prior = prior
        self._known: dict[frozenset[tuple[str, object]], tuple[Params, Prediction | None]] = {}
        self._learned = 0
        self._trees: Any = None

    @property
    def exists(self) -> bool:
        """Whether anything is predicted."""
        return self._prior is not None

    @property
    def asked(self) -> list[Params]:
        """Every configuration whose prediction is known."""
        return [params for params, _ in self._known.values()]

    def of(self, params: Params) -> Prediction | None:
        """Return the prediction of one configuration."""
        if self._prior is None:
            return None
        key = frozenset(params.items())
        if key not in self._known:
            self._known[key] = (dict(params), self._prior(params))
        return self._known[key][1]

    def rows(self, configs: Sequence[Params], scales: Sequence[Scale], names: Sequence[str]) -> Matrix:
        """Return the predictions, shape (configurations, 2 + constraints); 0 and `FAILS_UNSEEN` where there is none."""
        found = np.zeros((len(configs), 2 + len(names)))
        found[:, -1] = FAILS_UNSEEN
        if self._prior is None:
            return found
        for row, config in enumerate(configs):
            said = self.of(config)
            if said is None:
                continue
            found[row, -1] = FAILS_PREDICTED[said.values is None]
            if said.values is not None:
                found[row, 0] = sum(s.weight * s.gain(v) for s, v in zip(scales, said.values, strict=True))
                found[row, 1:-1] = squeezed([said.constraints.get(name, 0.0) for name in names])
        return found

    def guesses(
        self, configs: Sequence[Params], encoder: Encoder, scales: Sequence[Scale], names: Sequence[str]
    ) -> Matrix:
        """Return what the predictions of configurations that were not asked for are likely to be, by a forest."""
        if self._prior is None or len(self._known) < 10:
            return self.rows(configs, scales, names)
        if self._trees is None or len(self._known) > GROWN * self._learned:
            from sklearn.ensemble import ExtraTreesRegressor  # half a second to import

            asked = self.asked
            self._trees = ExtraTreesRegressor(TREES, random_state=0).fit(
                encoder.rows(asked), self.rows(asked, scales, names)
            )
            self._learned = len(asked)
        guessed: Matrix = self._trees.predict(encoder.rows(configs))
        return guessed


def explore(
    belief: Belief, space: Space, directions: Sequence[StudyDirection], weights: Sequence[float] | None, count: int
) -> None:
    """Ask for the predictions of `count` configurations: a third drawn at random, then neighbours of the best so far.

    What is predicted to fail or to break a promise ranks behind all that is not. Asks for the same ones each time.
    """
    rng = np.random.default_rng(0)
    leaders: list[Params] = []
    for _ in range(20 * count):
        known = len(belief.asked)
        if known >= count:
            break
        if known >= count // 3 and known % LEADERS == 0:
            leaders = ranked(belief, directions, weights)[:LEADERS]
        drawn = space.neighbour(rng, leaders[int(rng.integers(len(leaders)))]) if leaders else space.draw(rng)
        if drawn is not None:
            belief.of(drawn)


def ranked(belief: Belief, directions: Sequence[StudyDirection], weights: Sequence[float] | None) -> list[Params]:
    """Return the configurations that were asked for, the one with the best prediction first."""
    asked = belief.asked
    first = next((said for each in asked if (said := belief.of(each)) is not None and said.values is not None), None)
    if first is None or first.values is None:
        return asked
    scales = scales_of([first.values], directions, weights)
    rows = belief.rows(asked, scales, sorted(first.constraints))
    violated = np.maximum(rows[:, 1:-1], 0.0).sum(axis=1) + 10.0 * (rows[:, -1] > 0.5)
    return [asked[index] for index in np.lexsort((-rows[:, 0], violated))]
