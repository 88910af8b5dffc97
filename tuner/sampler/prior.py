"""Predictions of configurations as the prior mean of the surrogate: each computed once, in one pass or ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from optuna.study import StudyDirection

from tuner.sampler.encoding import EncodedConfigurations, Encoder, Matrix, Params
from tuner.sampler.history import ObjectiveScale, compress_violations, objective_scales

UNPREDICTED_FAILURE = 0.15
"""Prior probability of failure where nothing is predicted."""
FAILURE_BY_PREDICTION = (0.05, 0.85)
"""Prior probability of failure of a configuration that is predicted to run, and of one that is predicted to fail.

Predictions of failures may be wrong in both directions.
"""
TREES = 40
"""Trees of the forest that interpolates predictions; more cost time and change little."""
CONSIDERED_FIRST, CONSIDERED_LATEST = 200, 800
"""A suggestion considers the first and the latest predictions; the cost of all of them would grow with every trial."""
REFIT_GROWTH = 1.15
"""Growth of the number of predictions after which the forest is fitted again."""
VIOLATION_OF_FAILURE = 10.0
"""Added to the violation of a predicted failure when predictions are ranked."""


@dataclass(frozen=True)
class Prediction:
    """The prediction of one configuration.

    Args:
        values: of the objectives; None if the configuration is predicted to fail.
        constraints: constraint values by name; at most 0 is satisfied.
    """

    values: tuple[float, ...] | None
    constraints: Mapping[str, float]


Prior: TypeAlias = Callable[[Params], Prediction | None]
"""Predicts a configuration; None where it cannot."""


class PriorCache:
    """Predictions of configurations, each computed once; without a prior, nothing is predicted.

    Rows of prior means have the shape (configurations, objectives + constraints + 1): gains of the objectives,
    compressed violations, and the probability of failure. `spread` is the deviation of predictions relative to that of
    a simulator which knows nothing of the host.
    """

    def __init__(self, prior: Prior | None, spread: float = 1.0) -> None:
        self._prior = prior
        self.spread = spread
        self._known: dict[frozenset[tuple[str, object]], tuple[Params, Prediction | None]] = {}
        self._encoded: EncodedConfigurations | None = None
        self._encoded_by: Mapping[str, object] = {}
        self._fitted_for: tuple[int, object] = (0, None)
        self._forest: Any = None

    @property
    def exists(self) -> bool:
        """Whether anything is predicted."""
        return self._prior is not None

    @property
    def configurations(self) -> list[Params]:
        """Every configuration whose prediction was computed, in that order."""
        return [params for params, _ in self._known.values()]

    def predict(self, params: Params) -> Prediction | None:
        """Return the prediction of one configuration, from the cache if it is there."""
        if self._prior is None:
            return None
        key = frozenset(params.items())
        if key not in self._known:
            self._known[key] = (dict(params), self._prior(params))
        return self._known[key][1]

    def predicts_feasible(self, params: Params) -> bool:
        """Return whether a configuration is predicted to run and to satisfy every constraint."""
        prediction = self.predict(params)
        if prediction is None or prediction.values is None:
            return False
        return max(prediction.constraints.values(), default=0.0) <= 0.0

    def means(self, configs: Sequence[Params], scales: Sequence[ObjectiveScale], names: Sequence[str]) -> Matrix:
        """Return the prior means of configurations, which are predicted first where the cache lacks them."""
        return prediction_means([self.predict(config) for config in configs], scales, names)

    @property
    def considered(self) -> list[Params]:
        """The configurations with a prediction that a suggestion considers."""
        every = self.configurations
        return [every[position] for position in self._considered_positions()]

    def _considered_positions(self) -> list[int]:
        count = len(self._known)
        first = min(CONSIDERED_FIRST, count)
        return [*range(first), *range(max(CONSIDERED_FIRST, count - CONSIDERED_LATEST), count)]

    def considered_means(self, scales: Sequence[ObjectiveScale], names: Sequence[str]) -> Matrix:
        """Return the prior means of `considered`."""
        every = [prediction for _, prediction in self._known.values()]
        return prediction_means([every[position] for position in self._considered_positions()], scales, names)

    def encode_considered(self, encoder: Encoder) -> EncodedConfigurations:
        """Return `considered` encoded; each configuration is encoded once per encoder."""
        before = self._encoded if self._encoded_by == encoder.distributions else None
        new = encoder.encode(self.configurations[0 if before is None else len(before) :])
        self._encoded = new if before is None else EncodedConfigurations.stack([before, new])
        self._encoded_by = encoder.distributions
        return self._encoded.at(self._considered_positions())

    def interpolate(
        self,
        inputs: EncodedConfigurations,
        encoder: Encoder,
        scales: Sequence[ObjectiveScale],
        names: Sequence[str],
    ) -> Matrix:
        """Return the prior means of encoded configurations, interpolated by a forest of extremely randomised trees."""
        if not self._known:
            return unpredicted_means(len(inputs), len(scales), len(names))
        fitted_for = encoder.distributions, tuple(names), [scale.gains for scale in scales]
        if len(self._known) > REFIT_GROWTH * self._fitted_for[0] or self._fitted_for[1] != fitted_for:
            means = self.considered_means(scales, names)
            self._forest = import_forest()(TREES, random_state=0).fit(self.encode_considered(encoder).rows, means)
            self._fitted_for = len(self._known), fitted_for
        # The forest's own `predict` is the same sum, but takes 10 ms longer, in a dozen calls a suggestion.
        rows = np.ascontiguousarray(inputs.rows, dtype=np.float32)
        trees = self._forest.estimators_
        means = np.sum([tree.tree_.predict(rows)[:, :, 0] for tree in trees], axis=0) / len(trees)
        return np.asarray(means)


def import_forest() -> Any:
    """Return the class of forests that `PriorCache.interpolate` uses; the first import takes more than a second."""
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor


def prediction_means(
    predictions: Sequence[Prediction | None], scales: Sequence[ObjectiveScale], names: Sequence[str]
) -> Matrix:
    """Return the prior means of predictions; the shape is that of `PriorCache`."""
    means = unpredicted_means(len(predictions), len(scales), len(names))
    for row, prediction in enumerate(predictions):
        if prediction is None:
            continue
        means[row, -1] = FAILURE_BY_PREDICTION[prediction.values is None]
        if prediction.values is not None:
            means[row, : len(scales)] = [s.gain(v) for s, v in zip(scales, prediction.values, strict=True)]
            means[row, len(scales) : -1] = [prediction.constraints.get(name, 0.0) for name in names]
    running = [row for row, each in enumerate(predictions) if each is not None and each.values is not None]
    means[running, len(scales) : -1] = compress_violations(means[running, len(scales) : -1])
    return means


def unpredicted_means(rows: int, objectives: int, constraints: int) -> Matrix:
    """Return the prior means without a prediction: as good as the reference, `UNPREDICTED_FAILURE` to fail."""
    means = np.zeros((rows, objectives + constraints + 1))
    means[:, -1] = UNPREDICTED_FAILURE
    return means


def rank_by_prediction(
    cache: PriorCache, directions: Sequence[StudyDirection], weights: Sequence[float] | None
) -> list[Params]:
    """Return all configurations with a prediction, the least predicted violation first, then the highest score."""
    configs = cache.configurations
    first = next((p for each in configs if (p := cache.predict(each)) is not None and p.values is not None), None)
    if first is None or first.values is None:
        return configs
    scales = objective_scales([first.values], directions, weights)
    means = cache.means(configs, scales, sorted(first.constraints))
    score = means[:, : len(scales)] @ np.array([scale.weight for scale in scales])
    violation = np.maximum(means[:, len(scales) : -1], 0.0).sum(axis=1)
    violation = violation + VIOLATION_OF_FAILURE * (means[:, -1] > 0.5)
    return [configs[index] for index in np.lexsort((-score, violation))]
