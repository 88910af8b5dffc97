"""What is predicted of configurations: asked once each, guessed between those that were asked, ranked beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from optuna.study import StudyDirection

from tuner.sampler.acquisition.candidates import CandidateSpace
from tuner.sampler.surrogate.encoding import Encoder, Matrix, Params
from tuner.sampler.surrogate.history import Scale, scales_of, squeezed

FAILS_UNSEEN = 0.15
"""Share of configurations that are thought to fail where nothing is predicted."""
FAILS_PREDICTED = (0.05, 0.85)
"""Chance of failing of a configuration that is predicted to run, and of one that is predicted to fail."""
TREES = 40
LEADERS = 12
FIRST, LATEST = 200, 800
"""Predictions that a choice looks at, where there are more: what all of them cost grows with every trial."""
GROWN = 1.15
"""Factor by which what is known has to grow before the guesses are learned anew."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a configuration: values of the objectives, or None where it would not run; constraints."""

    values: tuple[float, ...] | None
    constraints: Mapping[str, float]


Prior: TypeAlias = Callable[[Params], Prediction | None]


class PriorCache:
    """A prior with a memory."""

    def __init__(self, prior: Prior | None) -> None:
        self._prior = prior
        self._known: dict[frozenset[tuple[str, object]], tuple[Params, Prediction | None]] = {}
        self._encoded: tuple[Matrix, Matrix] | None = None
        self._encoded_by: Mapping[str, object] = {}
        self._learned: tuple[int, object] = (0, None)
        self._trees: Any = None
        self._wanted: list[Params] = []

    @property
    def exists(self) -> bool:
        """Whether anything is predicted."""
        return self._prior is not None

    def keeps(self, params: Params) -> bool:
        """Return whether a configuration is predicted to run and to keep its promises."""
        said = self.of(params)
        return said is not None and said.values is not None and max(said.constraints.values(), default=0.0) <= 0.0

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

    def want(self, configs: Iterable[Params]) -> None:
        """Note configurations whose predictions the next choice will want, if anything is predicted."""
        if self.exists:
            self._wanted += configs

    def catch_up(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Ask for the predictions that are wanted, one after another, until it is `stopped`."""
        while self._wanted and not stopped():
            self.of(self._wanted.pop(0))

    def rows(self, configs: Sequence[Params], scales: Sequence[Scale], names: Sequence[str]) -> Matrix:
        """Return the predictions, shape (configurations, objectives + constraints + 1); see `blank` for unknown ones.

        Objectives are gains, unweighted; constraints are squeezed; the last column is the chance of failing.
        """
        return as_rows([self.of(config) for config in configs], scales, names)

    @property
    def considered(self) -> list[Params]:
        """The configurations that a choice looks at: the first and the latest whose prediction is known."""
        asked = self.asked
        return [asked[place] for place in self._places()]

    def _places(self) -> list[int]:
        """Return the places of what is considered among all that was asked for."""
        count = len(self._known)
        return [*range(min(FIRST, count)), *range(max(FIRST, count - LATEST), count)]

    def known_rows(self, scales: Sequence[Scale], names: Sequence[str]) -> Matrix:
        """Return `rows` of what is considered."""
        said = [each for _, each in self._known.values()]
        return as_rows([said[place] for place in self._places()], scales, names)

    def encoded(self, encoder: Encoder) -> tuple[Matrix, Matrix]:
        """Return rows and effects of what is considered; what was encoded before is not encoded again."""
        done = self._encoded if self._encoded_by == encoder.distributions else None
        new = self.asked[0 if done is None else len(done[0]) :]
        rows, effects = encoder.both(new)
        self._encoded = (rows, effects) if done is None else (np.vstack([done[0], rows]), np.vstack([done[1], effects]))
        self._encoded_by = encoder.distributions
        places = self._places()
        return self._encoded[0][places], self._encoded[1][places]

    def guesses(self, rows: Matrix, encoder: Encoder, scales: Sequence[Scale], names: Sequence[str]) -> Matrix:
        """Return what the predictions of encoded configurations are likely to be, by a forest; shape as of `rows`."""
        if not self._known:
            return blank(len(rows), len(scales), len(names))
        shape = encoder.distributions, tuple(names), [scale.gains for scale in scales]
        if len(self._known) > GROWN * self._learned[0] or self._learned[1] != shape:
            from sklearn.ensemble import ExtraTreesRegressor  # see `load_forest`

            known = self.known_rows(scales, names)
            self._trees = ExtraTreesRegressor(TREES, random_state=0).fit(self.encoded(encoder)[0], known)
            self._learned = len(self._known), shape
        # the forest's own `predict` is the same sum behind 10 ms of preparations, in a dozen calls a choice
        asked = np.ascontiguousarray(rows, dtype=np.float32)
        trees = self._trees.estimators_
        guessed: Matrix = np.sum([tree.tree_.predict(asked)[:, :, 0] for tree in trees], axis=0) / len(trees)
        return guessed


def load_forest() -> None:
    """Import what `PriorCache.guesses` needs: more than a second, which a choice would wait for."""
    import sklearn.ensemble  # noqa: F401


def as_rows(said: Sequence[Prediction | None], scales: Sequence[Scale], names: Sequence[str]) -> Matrix:
    """Return predictions as `PriorCache.rows` does."""
    found = blank(len(said), len(scales), len(names))
    for row, each in enumerate(said):
        if each is None:
            continue
        found[row, -1] = FAILS_PREDICTED[each.values is None]
        if each.values is not None:
            found[row, : len(scales)] = [s.gain(v) for s, v in zip(scales, each.values, strict=True)]
            found[row, len(scales) : -1] = [each.constraints.get(name, 0.0) for name in names]
    told = [row for row, each in enumerate(said) if each is not None and each.values is not None]
    found[told, len(scales) : -1] = squeezed(found[told, len(scales) : -1])
    return found


def blank(rows: int, objectives: int, constraints: int) -> Matrix:
    """Return what is thought where nothing is predicted: as good as the defaults, and `FAILS_UNSEEN` may fail."""
    found = np.zeros((rows, objectives + constraints + 1))
    found[:, -1] = FAILS_UNSEEN
    return found


def explore(
    belief: PriorCache,
    space: CandidateSpace,
    directions: Sequence[StudyDirection],
    weights: Sequence[float] | None,
    count: int,
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


def ranked(belief: PriorCache, directions: Sequence[StudyDirection], weights: Sequence[float] | None) -> list[Params]:
    """Return the configurations that were asked for, the one with the best prediction first."""
    asked = belief.asked
    first = next((said for each in asked if (said := belief.of(each)) is not None and said.values is not None), None)
    if first is None or first.values is None:
        return asked
    scales = scales_of([first.values], directions, weights)
    rows = belief.rows(asked, scales, sorted(first.constraints))
    score = rows[:, : len(scales)] @ np.array([scale.weight for scale in scales])
    violated = np.maximum(rows[:, len(scales) : -1], 0.0).sum(axis=1) + 10.0 * (rows[:, -1] > 0.5)
    return [asked[index] for index in np.lexsort((-score, violated))]
