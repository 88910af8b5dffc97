"""A Gaussian process over encoded configurations, with a prior mean that the simulator predicts.

For each output,

    y_i = m(x_i) + f(x_i) + ε_i,    f ~ GP(0, k),    ε_i ~ N(0, n²)
    k(x, x') = a² M(d(x, x')) + s² Σ_p v_p φ_p(x)·φ_p(x') + c² + b² m̃(x) m̃(x')
    d²(x, x') = Σ_p w_p |r_p(x) - r_p(x')|²
    M(d) = (1 + √5 d + 5/3 d²) exp(-√5 d)

- M is the Matérn correlation of smoothness 5/2; w_p is the inverse squared lengthscale of parameter p.
- The sum is an additive model: one effect per parameter, of relative variance v_p (Duvenaud et al., "Additive Gaussian
  processes", NeurIPS 2011).
- c is the standard deviation of the level.
- The last part lets the data scale the prior mean: it equals a factor 1 + β of m with β ~ N(0, b²). A prior mean that
  is wrong everywhere is corrected by one slope, not point by point. m̃(x) = max(m(x), -slope_limit).

r and φ are defined in `encoding`. The posterior of f is that of Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006, equations 2.25 and 2.26, chapter 2.7 for the explicit basis m̃. The hyperparameters
θ = (ln w_p, ln v_p, ln a/a₀, ln s/s₀, ln n/n₀) maximise the posterior density (equations 5.8 and 5.9), by L-BFGS.

The priors of the kernels' parameters assume relative targets: a gain or a compressed violation of 0.2 is a fifth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from tuner.sampler.encoding import ColumnParameters, EncodedConfigurations, Matrix, Vector

_ROOT5 = math.sqrt(5.0)
_JITTER = 1e-8
_LEAST_VARIANCE = 1e-12
_LOG_SCALE_SPREADS = np.array([0.7, 0.5, 0.4])
"""Prior standard deviations of ln a, ln s and ln n."""


@dataclass(frozen=True)
class KernelPrior:
    """The prior of the hyperparameters; standard deviations are in the units of the targets.

    Args:
        amplitude: a₀, standard deviation of the Matérn part.
        effects: s₀, standard deviation of the sum of effects.
        noise: n₀, standard deviation of a measurement.
        constant: c, standard deviation of the level.
        slope: b, standard deviation of the factor of the prior mean.
        slope_limit: prior means below its negative count as its negative in the slope part. Without a limit, the
            worst predictions would have the largest variance, and so a high expected improvement, as soon as the prior
            mean is found wrong.
        inverse_squared_lengthscale: prior median of each w_p.
        lengthscale_spread: prior standard deviation of each ln w_p.
        effect_spread: prior standard deviation of each ln v_p.
    """

    amplitude: float
    effects: float
    noise: float
    constant: float
    slope: float = 0.7
    slope_limit: float = math.inf
    inverse_squared_lengthscale: float = 0.3
    lengthscale_spread: float = 1.5
    effect_spread: float = 1.0

    def scaled(self, factor: float) -> KernelPrior:
        """Return the prior where predictions err by another factor; the level and the noise do not depend on them."""
        changes = {name: factor * getattr(self, name) for name in ("amplitude", "effects", "slope")}
        return replace(self, **changes)


class GaussianProcess:
    """A fitted process with several outputs, which share all hyperparameters but not the prior mean.

    Args:
        columns: the parameters that the columns of the inputs belong to.
        inputs: n encoded configurations.
        targets: y, shape (n, outputs).
        prior_means: m, shape (n, outputs).
        kernel_prior: the prior of the hyperparameters.
        max_iterations: of L-BFGS; the hyperparameters keep their prior medians where n < 3.
    """

    def __init__(
        self,
        columns: ColumnParameters,
        inputs: EncodedConfigurations,
        targets: Matrix,
        prior_means: Matrix,
        kernel_prior: KernelPrior,
        max_iterations: int = 20,
    ) -> None:
        self._columns, self._inputs, self._means, self._kernel_prior = columns, inputs, prior_means, kernel_prior
        self._residuals = targets - prior_means
        self._n_parameters = count = columns.count
        self._theta = self._prior_medians()
        bounds = [(-7.0, 3.5)] * count + [(-5.0, 4.0)] * count + [(-3.0, 3.0), (-3.0, 3.0), (-1.5, 2.0)]
        if len(inputs) > 2:
            options = {"maxiter": max_iterations}
            fit = minimize(self._loss, self._theta, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
            self._theta = fit.x
        self._condition(inputs, self._residuals, prior_means)

    def _condition(self, inputs: EncodedConfigurations, residuals: Matrix, means: Matrix) -> None:
        """Factorise K + n² I for each output and solve it for the residuals."""
        self._known, self._known_means = inputs, means
        noise, shared = self._noise_variance(), self._shared_covariance(inputs, inputs)
        self._factors, self._weights = [], []
        for output in range(residuals.shape[1]):
            covariance = shared + self._slope_covariance(means[:, output], output)
            covariance[np.diag_indices_from(covariance)] += noise + _JITTER
            factor = cholesky(covariance, lower=True)
            self._factors.append(factor)
            self._weights.append(cho_solve((factor, True), residuals[:, output]))

    def condition_on_pending(
        self,
        inputs: EncodedConfigurations,
        means: Matrix,
        least: Matrix | float = -np.inf,
        most: Matrix | float = np.inf,
    ) -> None:
        """Add configurations without an outcome as if the outcome were the posterior mean, within known bounds.

        This is the "kriging believer" (Ginsbourger et al., "Kriging is well-suited to parallelize optimization", 2010).
        """
        if not len(inputs):
            return
        expected = np.clip(self.predict(inputs, means)[0], least, most)
        self._condition(
            EncodedConfigurations.stack([self._inputs, inputs]),
            np.vstack([self._residuals, expected - means]),
            np.vstack([self._means, means]),
        )

    def predict(self, inputs: EncodedConfigurations, means: Matrix) -> tuple[Matrix, Matrix]:
        """Return the posterior mean and standard deviation of m + f at inputs, each of shape (n, outputs).

        Args:
            inputs: n encoded configurations.
            means: their prior means, shape (n, outputs).
        """
        expected, spread = np.empty(means.shape), np.empty(means.shape)
        shared, effects = self._shared_covariance(inputs, self._known), inputs.effects
        for output, (factor, weights) in enumerate(zip(self._factors, self._weights, strict=True)):
            cross = shared + self._slope_covariance(means[:, output], output)
            expected[:, output] = means[:, output] + cross @ weights
            explained = solve_triangular(factor, cross.T, lower=True, check_finite=False)
            prior = self._matern_variance() + self._effects_variance() * (
                (effects * effects) @ self._relative_effect_variances()[self._columns.effects]
            )
            prior += self._kernel_prior.constant**2 + self._slope_feature(means[:, output]) ** 2
            spread[:, output] = np.sqrt(np.maximum(prior - np.sum(explained * explained, axis=0), _LEAST_VARIANCE))
        return expected, spread

    def predict_residuals(self, inputs: EncodedConfigurations) -> Matrix:
        """Return the posterior mean of f where the prior mean is 0, shape (n, outputs)."""
        shared = self._shared_covariance(inputs, self._known)
        return np.column_stack([shared @ weights for weights in self._weights])

    def predict_joint(self, inputs: EncodedConfigurations, means: Matrix) -> tuple[Vector, Matrix]:
        """Return the posterior mean of the first output, shape (n,), and the covariance without noise, (n, n).

        What two configurations share, such as the level, cancels in the variance of their difference.
        """
        slope = self._slope_feature(means[:, 0])
        prior = self._shared_covariance(inputs, inputs) + np.outer(slope, slope)
        cross = self._shared_covariance(inputs, self._known) + self._slope_covariance(means[:, 0], 0)
        explained = solve_triangular(self._factors[0], cross.T, lower=True, check_finite=False)
        return np.asarray(means[:, 0] + cross @ self._weights[0]), np.asarray(prior - explained.T @ explained)

    @property
    def noise(self) -> float:
        """The standard deviation n of a measurement."""
        return math.sqrt(self._noise_variance())

    def inverse_squared_lengthscales(self) -> Vector:
        """Return w, shape (parameters,)."""
        return np.asarray(np.exp(self._theta[: self._n_parameters]))

    def _relative_effect_variances(self) -> Vector:
        """Return v, shape (parameters,)."""
        return np.asarray(np.exp(self._theta[self._n_parameters : 2 * self._n_parameters]))

    def _matern_variance(self) -> float:
        return float(self._kernel_prior.amplitude**2 * math.exp(2 * self._theta[-3]))

    def _effects_variance(self) -> float:
        return float(self._kernel_prior.effects**2 * math.exp(2 * self._theta[-2]))

    def _noise_variance(self) -> float:
        return float(self._kernel_prior.noise**2 * math.exp(2 * self._theta[-1]))

    def _column_scales(self) -> Vector:
        """Return √w of each column's parameter: the distance of scaled rows is d."""
        return np.asarray(np.sqrt(self.inverse_squared_lengthscales())[self._columns.rows])

    def _shared_covariance(self, inputs: EncodedConfigurations, others: EncodedConfigurations) -> Matrix:
        """Return the covariance of inputs with others that all outputs share: k without the slope part."""
        scale = self._column_scales()
        covariance: Matrix = self._matern_variance() * _matern(cdist(inputs.rows * scale, others.rows * scale))[0]
        covariance += self._effects_covariance(inputs.effects, others.effects) + self._kernel_prior.constant**2
        return covariance

    def _slope_covariance(self, means: Vector, output: int) -> Matrix:
        """Return b² m̃(x) m̃(x') of inputs with the data, for one output."""
        return np.asarray(np.outer(self._slope_feature(means), self._slope_feature(self._known_means[:, output])))

    def _slope_feature(self, means: Vector) -> Vector:
        """Return b m̃(x)."""
        return np.asarray(self._kernel_prior.slope * np.maximum(means, -self._kernel_prior.slope_limit))

    def _effects_covariance(self, effects: Matrix, others: Matrix) -> Matrix:
        """Return s² Σ_p v_p φ_p(x)·φ_p(x')."""
        scaled = effects * self._relative_effect_variances()[self._columns.effects]
        return np.asarray(self._effects_variance() * (scaled @ others.T))

    def _loss(self, theta: Vector) -> tuple[float, Vector]:
        """Return the negative log posterior density of θ, up to a constant, and its gradient.

        With r = y - m, α = K⁻¹ r and the sum over outputs:

            loss = Σ (½ rᵀα + ½ ln |K|) + ½ |(θ - θ₀) / τ|²
            ∂loss/∂θ_j = -½ Σ tr((α αᵀ - K⁻¹) ∂K/∂θ_j) + (θ_j - θ₀_j) / τ_j²
        """
        self._theta = theta
        scaled = self._inputs.rows * self._column_scales()
        matern, matern_slope = _matern(cdist(scaled, scaled))
        matern_variance, noise, count = self._matern_variance(), self._noise_variance(), self._n_parameters
        effects = self._effects_covariance(self._inputs.effects, self._inputs.effects)
        gradient = np.zeros_like(theta)
        loss = 0.0
        for output in range(self._residuals.shape[1]):
            slope = self._slope_feature(self._means[:, output])
            covariance = matern_variance * matern + effects
            covariance += self._kernel_prior.constant**2 + np.outer(slope, slope)
            covariance[np.diag_indices_from(covariance)] += noise + _JITTER
            try:
                factor = cholesky(covariance, lower=True, check_finite=False)
            except np.linalg.LinAlgError:
                return 1e10, np.zeros_like(theta)
            residual = self._residuals[:, output]
            weights = cho_solve((factor, True), residual, check_finite=False)
            loss += 0.5 * float(residual @ weights) + float(np.sum(np.log(np.diag(factor))))
            inner = np.outer(weights, weights) - cho_solve((factor, True), np.eye(len(residual)), check_finite=False)
            gradient[-3] -= float(np.sum(inner * matern)) * matern_variance
            gradient[-2] -= float(np.sum(inner * effects))
            gradient[-1] -= float(np.trace(inner)) * noise
            gradient[:count] -= 0.5 * matern_variance * self._sum_distances(inner * matern_slope, scaled)
            gradient[count : 2 * count] -= 0.5 * self._sum_effects(inner)
        return loss + self._penalty(theta, gradient), gradient

    def _sum_distances(self, weighted: Matrix, scaled: Matrix) -> Vector:
        """Return Σ_ij weighted_ij w_p |r_p(x_i) - r_p(x_j)|² for each parameter p."""
        per_column = 2.0 * (weighted.sum(axis=1) @ (scaled * scaled) - np.sum(scaled * (weighted @ scaled), axis=0))
        summed = np.bincount(self._columns.rows, weights=per_column, minlength=self._n_parameters)
        return summed.astype(np.float64)

    def _sum_effects(self, weighted: Matrix) -> Vector:
        """Return Σ_ij weighted_ij s² v_p φ_p(x_i)·φ_p(x_j) for each parameter p."""
        effects = self._inputs.effects
        per_feature = np.sum(effects * (weighted @ effects), axis=0)
        summed = np.bincount(self._columns.effects, weights=per_feature, minlength=self._n_parameters)
        return np.asarray(self._effects_variance() * self._relative_effect_variances() * summed)

    def _prior_medians(self) -> Vector:
        """Return θ₀, the medians of the hyperparameters' priors, where the fit starts."""
        count = self._n_parameters
        median = math.log(self._kernel_prior.inverse_squared_lengthscale)
        return np.concatenate([np.full(count, median), np.zeros(count + 3)])

    def _penalty(self, theta: Vector, gradient: Vector) -> float:
        """Return ½ |(θ - θ₀) / τ|² and add its derivative to the gradient."""
        prior = self._kernel_prior
        spreads = np.repeat([prior.lengthscale_spread, prior.effect_spread], self._n_parameters)
        spreads = np.concatenate([spreads, _LOG_SCALE_SPREADS])
        deviation = (theta - self._prior_medians()) / spreads
        gradient += deviation / spreads
        return 0.5 * float(deviation @ deviation)


def losses_of_first(mean: Vector, covariance: Matrix) -> tuple[Vector, Vector]:
    """Return mean and standard deviation of the first of n joint normal values minus each other, shape (n - 1,)."""
    variances = np.diag(covariance)
    spread = np.sqrt(np.maximum(variances[0] + variances[1:] - 2.0 * covariance[0, 1:], _LEAST_VARIANCE))
    return mean[0] - mean[1:], spread


def _matern(distance: Matrix) -> tuple[Matrix, Matrix]:
    """Return M(d) and its derivative with respect to d², which is -5/6 (1 + √5 d) exp(-√5 d)."""
    decay = np.exp(-_ROOT5 * distance)
    value: Matrix = (1.0 + _ROOT5 * distance + 5.0 / 3.0 * distance * distance) * decay
    slope: Matrix = -5.0 / 6.0 * (1.0 + _ROOT5 * distance) * decay
    return value, slope


WITH_PRIOR = KernelPrior(amplitude=0.15, effects=0.2, noise=0.03, constant=0.3, slope=0.3, slope_limit=0.5)
"""Score and constraints, where a simulator prior predicts them."""
WITHOUT_PRIOR = KernelPrior(amplitude=0.3, effects=0.4, noise=0.03, constant=0.3)
"""Score and constraints, where only source studies predict."""
OUTWARDS = KernelPrior(amplitude=0.15, effects=0.25, noise=0.03, constant=0.3)
"""Score and constraints, where nothing is predicted, of few changes from the incumbent: most flags change little."""
OF_SOURCES = KernelPrior(amplitude=0.3, effects=0.4, noise=0.03, constant=0.1)
"""Gains and constraints of source studies."""
OF_FAILURES = KernelPrior(amplitude=0.4, effects=0.2, noise=0.1, constant=0.1, slope=0.5)
"""Failures, which are 1, and successes, which are 0."""
FAILURE_ITERATIONS = 10
"""Iterations of L-BFGS at most for a process of failures."""
