"""A Gaussian process over rows, with one relevance a parameter and a mean that may be known beforehand.

The covariance of two rows is that of a Matern process of smoothness 5/2 in the weighted distance of the parameters,
plus that of a sum of effects, one a parameter, each with a variance of its own (Duvenaud et al., "Additive Gaussian
processes", NeurIPS 2011), plus a constant, plus a part along what is believed beforehand: so a belief that proves wrong
is unlearned as a whole, not point by point (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006,
chapters 2.7 and 5). Relevances, variances and noise are those of the highest posterior density, found by L-BFGS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from tuner.sampler.surrogate.encoding import Matrix, Vector

_ROOT5 = math.sqrt(5.0)
_JITTER = 1e-8
_SPREADS = np.array([0.7, 0.5, 0.4])
"""Of the logarithms of amplitude, effects and noise, beforehand."""

Owners: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The parameter that each column of the rows belongs to, and each feature of the effects."""


@dataclass(frozen=True)
class PriorScales:
    """What is thought of a process before data: standard deviations, in the units of its values.

    `amplitude` of what the parameters do together, `effects` of the sum of what each does by itself, `noise` of a
    measurement, `constant` of the level, `slope` of the factor by which the believed mean may be off; `relevance` and
    the spread of its logarithm hold for each parameter, and so does the spread of the logarithm of the share that its
    own effect has in the variance of all. What is believed to lie further below 0 than `reach` is no less sure for it:
    else nothing would promise more than what is believed to be worst, as soon as the belief is in doubt.
    """

    amplitude: float
    effects: float
    noise: float
    constant: float
    slope: float = 0.7
    reach: float = math.inf
    relevance: float = 0.3
    relevance_spread: float = 1.5
    share_spread: float = 1.0


class GaussianProcess:
    """A fitted process. `targets` has one column an output; all share relevances, each has its own amplitude."""

    def __init__(
        self,
        owners: Owners,
        rows: Matrix,
        effects: Matrix,
        targets: Matrix,
        means: Matrix,
        beliefs: PriorScales,
        steps: int = 20,
    ) -> None:
        """Fit.

        Args:
            owners: of the columns of `rows`, shape (columns,), and of `effects`, shape (features,).
            rows: encoded configurations, shape (n, columns).
            effects: their features in a sum of effects, shape (n, features).
            targets: what was observed, shape (n, outputs).
            means: what was believed, shape (n, outputs).
            beliefs: what is thought beforehand of the scale of things.
            steps: of L-BFGS at most.
        """
        self._owner, self._effect_owner = owners
        self._rows, self._effects, self._means, self._beliefs = rows, effects, means, beliefs
        self._residuals = targets - means
        self._parameters = count = int(self._owner.max()) + 1 if len(self._owner) else 0
        start = np.concatenate([np.full(count, math.log(beliefs.relevance)), np.zeros(count + 3)])
        bounds = [(-7.0, 3.5)] * count + [(-5.0, 4.0)] * count + [(-3.0, 3.0), (-3.0, 3.0), (-1.5, 2.0)]
        if len(rows) > 2:
            found = minimize(self._loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps})
            start = found.x
        self._theta = start
        self._condition(rows, effects, self._residuals, means)

    def _condition(self, rows: Matrix, effects: Matrix, residuals: Matrix, means: Matrix) -> None:
        self._known, self._known_effects, self._known_means = rows, effects, means
        noise, shared = self._noise(), self._shared(rows, effects)
        self._factors, self._weights = [], []
        for output in range(residuals.shape[1]):
            covariance = shared + self._along_belief(means[:, output], output)
            covariance[np.diag_indices_from(covariance)] += noise + _JITTER
            factor = cholesky(covariance, lower=True)
            self._factors.append(factor)
            self._weights.append(cho_solve((factor, True), residuals[:, output]))

    def with_pending(self, rows: Matrix, effects: Matrix, means: Matrix) -> None:
        """Take up rows whose outcome is not known yet as if they came out as predicted (Ginsbourger et al., 2010)."""
        if not len(rows):
            return
        expected, _ = self.predict(rows, effects, means)
        self._condition(
            np.vstack([self._rows, rows]),
            np.vstack([self._effects, effects]),
            np.vstack([self._residuals, expected - means]),
            np.vstack([self._means, means]),
        )

    def predict(self, rows: Matrix, effects: Matrix, means: Matrix) -> tuple[Matrix, Matrix]:
        """Return mean and standard deviation of the noise-free values, each of shape (rows, outputs)."""
        expected, spread = np.empty(means.shape), np.empty(means.shape)
        shared = self._shared(rows, effects)
        for output, (factor, weights) in enumerate(zip(self._factors, self._weights, strict=True)):
            cross = shared + self._along_belief(means[:, output], output)
            expected[:, output] = means[:, output] + cross @ weights
            explained = solve_triangular(factor, cross.T, lower=True, check_finite=False)
            prior = self._amplitude() + self._sum() * ((effects * effects) @ self._shares()[self._effect_owner])
            prior += self._beliefs.constant**2 + self._slid(means[:, output]) ** 2
            spread[:, output] = np.sqrt(np.maximum(prior - np.sum(explained * explained, axis=0), 1e-12))
        return expected, spread

    def expected(self, rows: Matrix, effects: Matrix) -> Matrix:
        """Return the mean of the noise-free values where nothing was believed beforehand, shape (rows, outputs)."""
        shared = self._shared(rows, effects)
        return np.column_stack([shared @ weights for weights in self._weights])

    def differences(self, rows: Matrix, effects: Matrix, means: Matrix) -> tuple[Matrix, Matrix]:
        """Return mean and standard deviation of the first row's value less each other's, (rows - 1, outputs).

        What two configurations have in common is as uncertain for one as for the other and takes no part.
        """
        count = len(rows) - 1
        expected, spread = np.empty((count, means.shape[1])), np.empty((count, means.shape[1]))
        shared, scale = self._shared(rows, effects), np.sqrt(self.relevances())[self._owner]
        alike = self._amplitude() * _matern(cdist(rows[1:] * scale, rows[:1] * scale))[0][:, 0]
        prior = 2.0 * (self._amplitude() - alike)
        prior += self._sum() * ((effects[1:] - effects[0]) ** 2 @ self._shares()[self._effect_owner])
        for output, (factor, weights) in enumerate(zip(self._factors, self._weights, strict=True)):
            cross = shared + self._along_belief(means[:, output], output)
            apart, believed = cross[0] - cross[1:], means[0, output] - means[1:, output]
            expected[:, output] = believed + apart @ weights
            explained = solve_triangular(factor, apart.T, lower=True, check_finite=False)
            slid = self._slid(means[0, output]) - self._slid(means[1:, output])
            variance = prior + slid**2 - np.sum(explained * explained, axis=0)
            spread[:, output] = np.sqrt(np.maximum(variance, 1e-12))
        return expected, spread

    @property
    def noise(self) -> float:
        """Standard deviation of a measurement."""
        return math.sqrt(self._noise())

    def relevances(self) -> Vector:
        """Return each parameter's relevance: the inverse square of its length scale."""
        found: Vector = np.exp(self._theta[: self._parameters])
        return found

    def _shares(self) -> Vector:
        """Return the variance of each parameter's own effect, relative to what it was beforehand."""
        found: Vector = np.exp(self._theta[self._parameters : 2 * self._parameters])
        return found

    def _amplitude(self) -> float:
        return float(self._beliefs.amplitude**2 * math.exp(2 * self._theta[-3]))

    def _sum(self) -> float:
        return float(self._beliefs.effects**2 * math.exp(2 * self._theta[-2]))

    def _noise(self) -> float:
        return float(self._beliefs.noise**2 * math.exp(2 * self._theta[-1]))

    def _shared(self, rows: Matrix, effects: Matrix) -> Matrix:
        """Return the part of the covariance with what is known that all outputs share."""
        scale = np.sqrt(self.relevances())[self._owner]
        found: Matrix = self._amplitude() * _matern(cdist(rows * scale, self._known * scale))[0]
        found += self._alike(effects, self._known_effects) + self._beliefs.constant**2
        return found

    def _along_belief(self, means: Vector, output: int) -> Matrix:
        """Return the part of an output's covariance with what is known that lies along what is believed."""
        along = np.outer(self._slid(means), self._slid(self._known_means[:, output]))
        return np.asarray(along, dtype=np.float64)

    def _slid(self, means: Vector) -> Vector:
        """Return how much values change if what is believed of them is off by one standard deviation of its factor."""
        return np.asarray(self._beliefs.slope * np.maximum(means, -self._beliefs.reach))

    def _alike(self, effects: Matrix, others: Matrix) -> Matrix:
        """Return the covariance of the sums of effects."""
        found: Matrix = self._sum() * ((effects * self._shares()[self._effect_owner]) @ others.T)
        return found

    def _loss(self, theta: Vector) -> tuple[float, Vector]:
        """Return the negative log posterior of the hyperparameters and its gradient."""
        self._theta = theta
        scale = np.sqrt(self.relevances())[self._owner]
        scaled = self._rows * scale
        matern, slope_of = _matern(cdist(scaled, scaled))
        amplitude, noise, count = self._amplitude(), self._noise(), self._parameters
        effects = self._alike(self._effects, self._effects)
        gradient = np.zeros_like(theta)
        loss = 0.0
        for output in range(self._residuals.shape[1]):
            slid = self._slid(self._means[:, output])
            covariance = amplitude * matern + effects
            covariance += self._beliefs.constant**2 + np.outer(slid, slid)
            covariance[np.diag_indices_from(covariance)] += noise + _JITTER
            try:
                factor = cholesky(covariance, lower=True, check_finite=False)
            except np.linalg.LinAlgError:
                return 1e10, np.zeros_like(theta)
            residual = self._residuals[:, output]
            weights = cho_solve((factor, True), residual, check_finite=False)
            loss += 0.5 * float(residual @ weights) + float(np.sum(np.log(np.diag(factor))))
            inner = np.outer(weights, weights) - cho_solve((factor, True), np.eye(len(residual)), check_finite=False)
            gradient[-3] -= float(np.sum(inner * matern)) * amplitude
            gradient[-2] -= float(np.sum(inner * effects))
            gradient[-1] -= float(np.trace(inner)) * noise
            gradient[:count] -= 0.5 * amplitude * self._along(inner * slope_of, scaled)
            gradient[count : 2 * count] -= 0.5 * self._along_effects(inner)
        return loss + self._prior(theta, gradient), gradient

    def _along(self, weighted: Matrix, scaled: Matrix) -> Vector:
        """Return, for each parameter, the sum over pairs of `weighted` times their squared distance in it."""
        per_column = 2.0 * (weighted.sum(axis=1) @ (scaled * scaled) - np.sum(scaled * (weighted @ scaled), axis=0))
        return np.bincount(self._owner, weights=per_column, minlength=self._parameters).astype(np.float64)

    def _along_effects(self, weighted: Matrix) -> Vector:
        """Return, for each parameter, the sum over pairs of `weighted` times the covariance of its own effects."""
        per_feature = np.sum(self._effects * (weighted @ self._effects), axis=0)
        summed = np.bincount(self._effect_owner, weights=per_feature, minlength=self._parameters)
        found: Vector = self._sum() * self._shares() * summed
        return found

    def _prior(self, theta: Vector, gradient: Vector) -> float:
        """Return the penalty of hyperparameters far from what is believed, and add its slope to the gradient."""
        beliefs, count = self._beliefs, self._parameters
        expected = np.concatenate([np.full(count, math.log(beliefs.relevance)), np.zeros(count + 3)])
        spreads = np.repeat([beliefs.relevance_spread, beliefs.share_spread], count)
        spreads = np.concatenate([spreads, _SPREADS])
        away = (theta - expected) / spreads
        gradient += away / spreads
        return 0.5 * float(away @ away)


def _matern(distance: Matrix) -> tuple[Matrix, Matrix]:
    """Return the Matern 5/2 correlation at a distance, and its derivative by the squared distance."""
    decay = np.exp(-_ROOT5 * distance)
    value: Matrix = (1.0 + _ROOT5 * distance + 5.0 / 3.0 * distance * distance) * decay
    slope: Matrix = -5.0 / 6.0 * (1.0 + _ROOT5 * distance) * decay
    return value, slope
