"""Warm start from source studies: a Gaussian process of their trials shifts the prior mean of a new study.

The design is a stack of residual processes (Golovin et al., "Google Vizier", KDD 2017, section 3.3): the new study's
process models the deviations of its own trials from the shifted mean. Values are relative to the first measured trial
of their own study, as a rule the defaults, because another GPU or model has another level. Where the new study has a
prior, the process models measured minus predicted of the source studies: effects that the prior predicts differ between
GPUs and traffic, its errors carry over. The slope of the new study's process scales the shift, so that a misleading
source study is corrected as a whole (`KernelPrior.slope`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from tuner.sampler.encoding import EncodedConfigurations, Encoder, Matrix, Params, Vector
from tuner.sampler.gaussian_process import FAILURE_ITERATIONS, OF_FAILURES, OF_SOURCES, GaussianProcess
from tuner.sampler.history import History, ObjectiveScale, compress_violations
from tuner.sampler.prior import Prediction, prediction_means, unpredicted_means

Predictions: TypeAlias = Sequence[Prediction | None]


@dataclass(frozen=True)
class SourceHistory:
    """The trials of a source study, in the parameters, objectives and constraints of the new one.

    Args:
        history: the trials; the first measured one is the reference, as a rule the defaults.
        predict: returns the predictions of `history.measured` and of `history.failed`, for the source study's own GPU,
            model and workload; called once. None: the source study cannot be predicted.
    """

    history: History
    predict: Callable[[], tuple[Predictions, Predictions]] | None = None

    @cached_property
    def predicted(self) -> tuple[Predictions, Predictions] | None:
        """The predictions of the measured and of the failed configurations."""
        return None if self.predict is None else self.predict()

    @cached_property
    def predicted_to_run(self) -> list[int]:
        """The positions in `history.measured` that have predicted values; only these have a residual."""
        predictions = [] if self.predicted is None else self.predicted[0]
        return [index for index, each in enumerate(predictions) if each is not None and each.values is not None]


class Transfer:
    """The source studies of a new study.

    Args:
        sources: the studies; those without a measured trial are ignored.
        with_prior: whether the new study has a prior. Then a source study without predictions does not shift the mean;
            its best configurations are still candidates.
    """

    def __init__(self, sources: Sequence[SourceHistory], with_prior: bool) -> None:
        self._sources = [each for each in sources if each.history.measured]
        self._with_prior = with_prior
        self._fitted_for: object = None
        self._values_process: GaussianProcess | None = None
        self._failure_process: GaussianProcess | None = None

    @property
    def exists(self) -> bool:
        """Whether there are source studies."""
        return bool(self._sources)

    def predict_sources(self) -> None:
        """Compute the predictions of the source studies' trials, if they are needed."""
        _ = self._shifting

    @property
    def shifts_mean(self) -> bool:
        """Whether there is a shift of the prior mean; computes the predictions of the source studies."""
        return bool(self._shifting)

    @cached_property
    def _shifting(self) -> list[SourceHistory]:
        return [each for each in self._sources if not self._with_prior or each.predicted_to_run]

    def best(self, scales: Sequence[ObjectiveScale]) -> list[Params]:
        """Return the feasible configurations of all source studies, the highest score in its own study first.

        The references of the scales are replaced by those of the source studies.
        """
        ranked: list[tuple[float, int, Params]] = []
        for history in [each.history for each in self._sources]:
            own = _own_scales(scales, history)
            for config, values, constraints in zip(history.measured, history.values, history.constraints, strict=True):
                if all(value <= 0 for value in constraints.values()):
                    gain = sum(s.weight * s.gain(v) for s, v in zip(own, values, strict=True))
                    ranked.append((-gain, len(ranked), config))
        return [config for _, _, config in sorted(ranked, key=lambda each: each[:2])]

    def mean_shift(
        self, inputs: EncodedConfigurations, encoder: Encoder, scales: Sequence[ObjectiveScale], names: Sequence[str]
    ) -> Matrix:
        """Return the shift of the prior means of encoded configurations; the shape is that of `PriorCache.means`.

        To be called only if `shifts_mean` is True.
        """
        fitted_for = encoder.distributions, tuple(names), [scale.gains for scale in scales]
        if self._fitted_for != fitted_for:
            self._fit(encoder, scales, names)
            self._fitted_for = fitted_for
        assert self._values_process is not None
        assert self._failure_process is not None
        values, failure = self._values_process, self._failure_process
        return np.hstack([values.predict_residuals(inputs), failure.predict_residuals(inputs)])

    def _fit(self, encoder: Encoder, scales: Sequence[ObjectiveScale], names: Sequence[str]) -> None:
        sources = self._shifting
        residuals = [self._residuals(each, scales, names) for each in sources]
        compared = [each.history.measured[index] for each in sources for index in self._compared(each)]
        values = np.vstack([each[0] for each in residuals])
        self._values_process = GaussianProcess(
            encoder.columns, encoder.encode(compared), values, np.zeros_like(values), OF_SOURCES
        )
        measured = encoder.encode([config for each in sources for config in each.history.measured])
        failed = encoder.encode([config for each in sources for config in each.history.failed])
        failures = np.concatenate([*(each[1] for each in residuals), *(each[2] for each in residuals)])[:, None]
        self._failure_process = GaussianProcess(
            encoder.columns,
            EncodedConfigurations.stack([measured, failed]),
            failures,
            np.zeros_like(failures),
            OF_FAILURES,
            FAILURE_ITERATIONS,
        )

    def _compared(self, source: SourceHistory) -> list[int]:
        """Return the positions of the measured configurations whose gains and constraints are compared."""
        return source.predicted_to_run if self._with_prior else [*range(len(source.history.measured))]

    def _residuals(
        self, source: SourceHistory, scales: Sequence[ObjectiveScale], names: Sequence[str]
    ) -> tuple[Matrix, Vector, Vector]:
        """Return the deviations of a source study's trials from their prior means.

        Returns:
            Gains and compressed violations of the compared configurations, relative to the first of them, shape
            (compared, objectives + constraints); 0 minus the prior probability of failure, of the measured ones; and
            1 minus it, of the failed ones.
        """
        history, own = source.history, _own_scales(scales, source.history)
        gains = [[scale.gain(value) for scale, value in zip(own, values, strict=True)] for values in history.values]
        violations = [[each.get(name, 0.0) for name in names] for each in history.constraints]
        values = np.column_stack([gains, compress_violations(violations).reshape(len(gains), len(names))])
        predicted = source.predicted if self._with_prior else None
        if predicted is None:
            measured = unpredicted_means(len(history.measured), len(own), len(names))
            failed = unpredicted_means(len(history.failed), len(own), len(names))
        else:
            measured = prediction_means(predicted[0], own, names)
            failed = prediction_means(predicted[1], own, names)
        values = (values - measured[:, :-1])[self._compared(source)]
        return np.asarray(values - values[0]), -measured[:, -1], 1.0 - failed[:, -1]


def _own_scales(scales: Sequence[ObjectiveScale], history: History) -> list[ObjectiveScale]:
    """Return the scales relative to the first values of a source study."""
    return [replace(scale, reference=value) for scale, value in zip(scales, history.values[0], strict=True)]
