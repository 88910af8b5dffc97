"""The surrogate of one study: Gaussian processes of the score, the constraints and the failures.

Score and constraints are outputs of one process, whose prior mean is the prediction; so the process models the
residual, measured minus predicted. Failures have a process of their own, with the targets 1 (failed) and 0 (ran).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from scipy.special import log_ndtr
from threadpoolctl import ThreadpoolController

from tuner.sampler.encoding import EncodedConfigurations, Encoder, Matrix, Params, Vector
from tuner.sampler.gaussian_process import (
    FAILURE_ITERATIONS,
    OF_FAILURES,
    OUTWARDS,
    WITH_PRIOR,
    WITHOUT_PRIOR,
    GaussianProcess,
)
from tuner.sampler.history import History, compress_violations, objective_scales
from tuner.sampler.prior import PriorCache
from tuner.sampler.transfer import Transfer

FAILURE_BOUNDARY = 0.5
"""Output of the failure process above which a configuration fails."""
LEAST_BOUNDARY_SPREAD = 0.15
"""Standard deviation of the failure boundary, added to that of the process.

Without it, one success beside one failure would make the boundary certain.
"""
RANKING_SPREADS = 0.5
"""Standard deviations by which the ranking lowers scores and raises constraints.

The best of many noisy measurements is an overestimate, and more so far from other trials.
"""


@dataclass(frozen=True)
class SurrogateSettings:
    """The parts of the surrogate that are the same for every suggestion."""

    prior: PriorCache
    transfer: Transfer
    weights: tuple[float, ...] | None


@dataclass(frozen=True)
class Posterior:
    """The surrogate at n configurations; each vector has the shape (n,).

    Args:
        score: posterior mean of the score, a gain over the reference.
        score_spread: its standard deviation.
        log_runs: ln of the probability that the configuration does not fail.
        log_satisfies: ln of the probability that it satisfies every constraint.
    """

    score: Vector
    score_spread: Vector
    log_runs: Vector
    log_satisfies: Vector

    @property
    def log_feasible(self) -> Vector:
        """The logarithm of the probability of feasibility."""
        return self.log_runs + self.log_satisfies


class Surrogate:
    """The models, fitted to a history with at least one measured trial. To be used within `single_blas_thread`.

    Prior means have the shape (configurations, 2 + constraints): score, compressed violations, probability of failure.
    """

    def __init__(
        self,
        settings: SurrogateSettings,
        distributions: Mapping[str, BaseDistribution],
        directions: Sequence[StudyDirection],
        history: History,
    ) -> None:
        self._prior, self._transfer, self.history = settings.prior, settings.transfer, history
        self.scales = objective_scales(history.values, directions, settings.weights)
        self._weights = np.array([scale.weight for scale in self.scales])
        self._names = history.constraint_names()
        self.encoder = Encoder(distributions)
        self.measured = self.encoder.encode(history.measured)
        self.measured_means = self._means(history.measured)
        self._fit()
        self.incumbent_score = self._find_incumbent_score()
        """The highest posterior mean of the score of a feasible trial; None if there is none."""

    def _fit(self) -> None:
        history, columns, means = self.history, self.encoder.columns, self.measured_means
        without = WITHOUT_PRIOR if self._transfer.exists else OUTWARDS
        kernel_prior = WITH_PRIOR.scaled(self._prior.spread) if self._prior.exists else without
        targets = self._targets()
        self._values = GaussianProcess(columns, self.measured, targets, means[:, :-1], kernel_prior)
        ran, cut_means = len(history.measured) + len(history.cut), self._means(history.cut)
        inputs = self.encoder.encode([*history.measured, *history.cut, *history.failed])
        labels = np.concatenate([np.zeros(ran), np.ones(len(history.failed))])
        failure_means = np.vstack([means[:, -1:], cut_means[:, -1:], self._means(history.failed)[:, -1:]])
        self._failures = GaussianProcess(
            columns, inputs, labels[:, None], failure_means, OF_FAILURES, FAILURE_ITERATIONS
        )
        pending, means = self.encoder.encode(history.pending), self._means(history.pending)
        self._failures.condition_on_pending(pending, means[:, -1:])
        unknown = self.encoder.encode([*history.cut, *history.pending])
        self._values.condition_on_pending(unknown, np.vstack([cut_means, means])[:, :-1], *self._bounds())

    def _bounds(self) -> tuple[Matrix, Matrix]:
        """Return the least and the most of score and compressed violations of the trials that were cut or run."""
        history = self.history
        shape = len(history.cut) + len(history.pending), 1 + len(self._names)
        least, most = np.full(shape, -np.inf), np.full(shape, np.inf)
        for row, (gain, known) in enumerate(zip(history.gains_at_most, history.least_constraints, strict=True)):
            most[row, 0] = np.inf if gain is None else gain
            for place, name in enumerate(self._names, start=1):
                least[row, place] = compress_violations(known[name]) if name in known else -np.inf
        return least, most

    def _targets(self) -> Matrix:
        """Return score and compressed violations of the measured trials, shape (n, 1 + constraints)."""
        history = self.history
        gains = [[scale.gain(v) for scale, v in zip(self.scales, values, strict=True)] for values in history.values]
        scores = np.array(gains) @ self._weights
        violations = [[each.get(name, 0.0) for name in self._names] for each in history.constraints]
        return np.column_stack([scores, compress_violations(violations).reshape(len(scores), len(self._names))])

    def _means(self, configs: Sequence[Params]) -> Matrix:
        """Return the prior means of configurations, from their predictions."""
        means = self._prior.means(configs, self.scales, self._names)
        if self._transfer.shifts_mean:
            means = self._shift(means, self.encoder.encode(configs))
        return self._weigh(means)

    def _shift(self, means: Matrix, inputs: EncodedConfigurations) -> Matrix:
        if not self._transfer.shifts_mean:
            return means
        return np.asarray(means + self._transfer.mean_shift(inputs, self.encoder, self.scales, self._names))

    def _weigh(self, means: Matrix) -> Matrix:
        """Return prior means with the gains of all objectives weighted into one score."""
        count = len(self.scales)
        return np.column_stack([means[:, :count] @ self._weights, means[:, count:]])

    def interpolated_means(self, inputs: EncodedConfigurations) -> Matrix:
        """Return the prior means of encoded configurations, their predictions interpolated."""
        means = self._prior.interpolate(inputs, self.encoder, self.scales, self._names)
        return self._weigh(self._shift(means, inputs))

    def predicted_means(self) -> tuple[EncodedConfigurations, Matrix]:
        """Return the configurations of `PriorCache.considered`, encoded, and their prior means."""
        inputs = self._prior.encode_considered(self.encoder)
        return inputs, self._weigh(self._shift(self._prior.considered_means(self.scales, self._names), inputs))

    def posterior(self, inputs: EncodedConfigurations, means: Matrix) -> Posterior:
        """Return the posterior at encoded configurations with the given prior means.

        With the posterior mean μ and standard deviation σ of each process, Φ the normal distribution function:

            P(runs) = Φ((½ - μ_f) / √(σ_f² + 0.15²))
            P(satisfies) = Π_j Φ(-μ_j / √(σ_j² + n²))

        over the constraints j, whose next measurements have the noise n (Gardner et al., "Bayesian optimization with
        inequality constraints", ICML 2014).
        """
        expected, spread = self._values.predict(inputs, means[:, :-1])
        failure, unsure = self._failures.predict(inputs, means[:, -1:])
        runs = log_ndtr((FAILURE_BOUNDARY - failure[:, 0]) / np.hypot(unsure[:, 0], LEAST_BOUNDARY_SPREAD))
        satisfies = log_ndtr(-expected[:, 1:] / np.hypot(spread[:, 1:], self._values.noise)).sum(axis=1)
        return Posterior(expected[:, 0], spread[:, 0], runs, satisfies)

    @property
    def noise(self) -> float:
        """The standard deviation of a measured score."""
        return self._values.noise

    @property
    def has_predictions(self) -> bool:
        """Whether the prior means are predictions."""
        return self._prior.exists

    def predicted_scores(self, configs: Sequence[Params]) -> Vector:
        """Return the prior mean of each configuration's score."""
        return np.asarray(self._means(configs)[:, 0])

    def joint_scores(self, configs: Sequence[Params]) -> tuple[Vector, Matrix]:
        """Return the posterior mean of the scores of configurations, shape (n,), and their covariance, (n, n)."""
        means = self._means(configs)
        return self._values.predict_joint(self.encoder.encode(configs), means[:, :-1])

    def probability_of_feasibility(self, configs: Sequence[Params]) -> Vector:
        """Return the probability that each configuration runs and satisfies every constraint, shape (n,)."""
        inputs, means = self.encoder.encode(configs), self._means(configs)
        return np.asarray(np.exp(self.posterior(inputs, means).log_feasible))

    def _measured_values(self) -> tuple[Matrix, Matrix]:
        """Return posterior mean and standard deviation of score and constraints of the measured trials."""
        return self._values.predict(self.measured, self.measured_means[:, :-1])

    def _find_incumbent_score(self) -> float | None:
        feasible = np.array([all(v <= 0 for v in each.values()) for each in self.history.constraints], dtype=bool)
        return float(np.max(self._measured_values()[0][feasible, 0])) if feasible.any() else None

    def scores_in_order(self) -> list[float | None]:
        """Return the score of each trial that was measured or failed, in order, None for an infeasible one."""
        feasible = [all(v <= 0 for v in each.values()) for each in self.history.constraints]
        scores = iter([float(score) for score, holds in zip(self._targets()[:, 0], feasible, strict=True) if holds])
        return [next(scores) if holds else None for holds in self.history.feasible_flags]

    def centre(self) -> Params:
        """Return the feasible configuration with the best posterior score; to be called only if there is one."""
        expected, _ = self._measured_values()
        feasible = [all(v <= 0 for v in each.values()) for each in self.history.constraints]
        return self.history.measured[int(np.argmax(np.where(feasible, expected[:, 0], -np.inf)))]

    def ranking(self) -> list[int]:
        """Return the positions of the measured configurations that are likely feasible, the best first.

        A score counts as μ - ½ σ: the best of many noisy measurements is an overestimate, and more so far from other
        trials. Likely feasible is μ + ½ σ <= 0 for each constraint.
        """
        expected, spread = self._measured_values()
        likely = np.all(expected[:, 1:] + RANKING_SPREADS * spread[:, 1:] <= 0, axis=1)
        order = np.argsort(-(expected[:, 0] - RANKING_SPREADS * spread[:, 0]), kind="stable")
        return [int(index) for index in order if likely[index]]


_LIMITED = threading.RLock()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread within the context, which one thread of the process enters at a time.

    More threads add in another order, and a seed would give another study. The sampler's matrices are too small to gain
    from them, and they would wait for cores that servers need.
    """
    with _LIMITED, _controller().limit(limits=1, user_api="blas"):
        yield
