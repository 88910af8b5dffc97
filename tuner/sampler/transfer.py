"""What earlier studies teach: how much better or worse than their own defaults configurations were there.

What they measured is a Gaussian process of its own, whose mean the study's own measurements correct (a stack of
residual processes: Golovin et al., "Google Vizier", KDD 2017, section 3.3). Everything is relative to what its own
study measured first, as a rule the defaults: another card or another model has another level, which teaches nothing.
Where the study has predictions, a lesson is what an earlier study measured less what is predicted of *it*: what flags
do on another card or to other traffic is for the predictions to say, what they are wrong about is learned. How much
of it holds is learned too, see `gp.PriorScales.slope`: an earlier study that misleads is unlearned as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from tuner.sampler.prior.prior_cache import Prediction, as_rows, blank
from tuner.sampler.surrogate.encoding import Encoder, Matrix, Params, Vector
from tuner.sampler.surrogate.gaussian_process import GaussianProcess, PriorScales
from tuner.sampler.surrogate.history import History, Scale, squeezed

SCALES = PriorScales(amplitude=0.3, effects=0.4, noise=0.03, constant=0.1)
RUNS_SCALES = PriorScales(amplitude=0.4, effects=0.2, noise=0.1, constant=0.1)

Predictions: TypeAlias = Sequence[Prediction | None]


@dataclass(frozen=True)
class SourceHistory:
    """An earlier study, its configurations in the parameters of this one, what it compares with first.

    `predict`, asked once, predicts its own measured configurations and those that failed; None: nobody can.
    """

    history: History
    predict: Callable[[], tuple[Predictions, Predictions]] | None = None

    @cached_property
    def foretold(self) -> list[int]:
        """The places of what was measured and is predicted to run: only of these a prediction can be off by a share."""
        said = [] if self.predicted is None else self.predicted[0]
        return [place for place, each in enumerate(said) if each is not None and each.values is not None]

    @cached_property
    def predicted(self) -> tuple[Predictions, Predictions] | None:
        """What is predicted of what was measured, and of what failed."""
        return None if self.predict is None else self.predict()


class Transfer:
    """The lessons of earlier studies."""

    def __init__(self, earlier: Sequence[SourceHistory], beside_predictions: bool) -> None:
        """Take up studies; one that measured nothing teaches nothing.

        Args:
            earlier: the studies.
            beside_predictions: whether this study has predictions; of a study without any it then takes no lessons, but
                considers its best configurations.
        """
        self._earlier = [each for each in earlier if each.history.measured]
        self._predicted = beside_predictions
        self._fitted_for: object = None
        self._kept: GaussianProcess | None = None
        self._runs: GaussianProcess | None = None

    @property
    def exists(self) -> bool:
        """Whether there are earlier studies."""
        return bool(self._earlier)

    def prepare(self) -> None:
        """Ask what is predicted of the earlier studies, where that counts; takes as long as it does."""
        _ = self._taught

    @cached_property
    def _taught(self) -> list[SourceHistory]:
        return [each for each in self._earlier if not self._predicted or each.foretold]

    @property
    def teaches(self) -> bool:
        """Whether anything is to be added to what is predicted; see `prepare`."""
        return bool(self._taught)

    def best(self, scales: Sequence[Scale]) -> list[Params]:
        """Return the configurations that kept every promise, the highest score in its own study first."""
        found: list[tuple[float, int, Params]] = []
        for history in [each.history for each in self._earlier]:
            own = _own(scales, history)
            for config, values, constraints in zip(history.measured, history.values, history.constraints, strict=True):
                if all(value <= 0 for value in constraints.values()):
                    gain = sum(s.weight * s.gain(v) for s, v in zip(own, values, strict=True))
                    found.append((-gain, len(found), config))
        return [config for _, _, config in sorted(found, key=lambda each: each[:2])]

    def shift(
        self, rows: Matrix, effects: Matrix, encoder: Encoder, scales: Sequence[Scale], names: Sequence[str]
    ) -> Matrix:
        """Return what is to be added to the predictions of encoded configurations, shape as of `Belief.rows`.

        Only where it `teaches`.
        """
        fitted_for = encoder.distributions, tuple(names), [scale.gains for scale in scales]
        if self._fitted_for != fitted_for:
            self._fit(encoder, scales, names)
            self._fitted_for = fitted_for
        assert self._kept is not None
        assert self._runs is not None
        return np.hstack([self._kept.expected(rows, effects), self._runs.expected(rows, effects)])

    def _fit(self, encoder: Encoder, scales: Sequence[Scale], names: Sequence[str]) -> None:
        owners, histories = (encoder.owner, encoder.effect_owner), [each.history for each in self._taught]
        lessons = [self._lessons(each, scales, names) for each in self._taught]
        compared = [each.history.measured[place] for each in self._taught for place in self._compared(each)]
        measured = encoder.both([config for history in histories for config in history.measured])
        failed = encoder.both([config for history in histories for config in history.failed])
        gains = np.vstack([each[0] for each in lessons])
        self._kept = GaussianProcess(owners, *encoder.both(compared), gains, np.zeros_like(gains), SCALES)
        surprise = np.concatenate([*(each[1] for each in lessons), *(each[2] for each in lessons)])[:, None]
        rows, effects = (np.vstack(pair) for pair in zip(measured, failed, strict=True))
        self._runs = GaussianProcess(owners, rows, effects, surprise, np.zeros_like(surprise), RUNS_SCALES, steps=10)

    def _compared(self, earlier: SourceHistory) -> list[int]:
        """Return the places of what was measured that teaches of gains and constraints."""
        return earlier.foretold if self._predicted else [*range(len(earlier.history.measured))]

    def _lessons(
        self, earlier: SourceHistory, scales: Sequence[Scale], names: Sequence[str]
    ) -> tuple[Matrix, Vector, Vector]:
        """Return a study's gains and constraints less what is predicted, relative to its first; (compared, outputs).

        And how much less or more likely than thought what was measured failed, and what failed; (n,) and (m,).
        """
        history, own = earlier.history, _own(scales, earlier.history)
        gains = [[scale.gain(value) for scale, value in zip(own, values, strict=True)] for values in history.values]
        violations = [[each.get(name, 0.0) for name in names] for each in history.constraints]
        found = np.column_stack([gains, squeezed(violations).reshape(len(gains), len(names))])
        known = earlier.predicted if self._predicted else None
        worked = blank(len(history.measured), len(own), len(names)) if known is None else as_rows(known[0], own, names)
        broke = blank(len(history.failed), len(own), len(names)) if known is None else as_rows(known[1], own, names)
        found = (found - worked[:, :-1])[self._compared(earlier)]
        return np.asarray(found - found[0]), -worked[:, -1], 1.0 - broke[:, -1]


def _own(scales: Sequence[Scale], history: History) -> list[Scale]:
    """Return the scales with an earlier study's first values for reference."""
    return [replace(scale, reference=value) for scale, value in zip(scales, history.values[0], strict=True)]
