"""The acquisition function: expected improvement times the probability of feasibility, as a logarithm."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from tuner.sampler.acquisition.expected_improvement import log_expected_improvement
from tuner.sampler.surrogate.encoding import EncodedConfigurations, Matrix, Params, Vector
from tuner.sampler.surrogate.model import Posterior, Surrogate

EXPLORATION = 2.0
"""Factor on the standard deviation of a candidate's score in the acquisition value."""
THRESHOLD_FROM = 12
"""Number of finished trials from which on candidates must reach the feasibility thresholds."""
THRESHOLD_WINDOW = 10
"""Number of latest trials whose infeasible share determines the thresholds."""
RUNS_THRESHOLD, SATISFIES_THRESHOLD = (1.6, 6.0), (1.0, 3.0)
"""Intercept a and slope b of the thresholds Φ(a + b · infeasible share)."""
BELOW_THRESHOLD = 1e6
"""Penalty on the logarithm of the probability of feasibility below a threshold."""
LEAST_SPREAD = 1e-4
"""Least standard deviation of a score."""


class FeasibleImprovement:
    """The acquisition function of one suggestion.

    With the incumbent's score t, the posterior mean μ and standard deviation σ of a candidate's score, and
    P = P(runs) P(satisfies) of `Surrogate.posterior`, the acquisition value is

        ln EI(μ - t, 2σ) + ln P

    (Gardner et al., "Bayesian optimization with inequality constraints", ICML 2014; the factor 2 adds exploration). It
    is ln P alone while no trial is feasible. After `THRESHOLD_FROM` trials, candidates must reach

        P(runs) >= Φ(1.6 + 6 u)    and    P(satisfies) >= Φ(1 + 3 u),    u = infeasible share of the latest trials.

    Below a threshold the value is ln P - 10⁶: such candidates rank behind all others, the most feasible first.
    """

    def __init__(self, surrogate: Surrogate) -> None:
        self._surrogate = surrogate
        self._largest_log_improvement = -math.inf

    @property
    def max_expected_improvement(self) -> float | None:
        """The largest EI(μ - t, σ) P of everything evaluated so far, as a share of the score; None without incumbent.

        It includes candidates below a threshold and candidates that break a rule, so it is an upper estimate.
        """
        if self._surrogate.incumbent_score is None:
            return None
        return math.exp(self._largest_log_improvement)

    def of(self, configs: list[Params]) -> Vector:
        """Return the acquisition values of configurations, their predictions interpolated, shape (n,)."""
        return self(self._surrogate.encoder.encode(configs))

    def __call__(self, inputs: EncodedConfigurations, means: Matrix | None = None) -> Vector:
        """Return the acquisition values of encoded configurations, shape (n,).

        Args:
            inputs: n encoded configurations.
            means: their prior means; interpolated if None.
        """
        if means is None:
            means = self._surrogate.interpolated_means(inputs)
        posterior = self._surrogate.posterior(inputs, means)
        log_feasible = posterior.log_feasible
        values = log_feasible
        if self._surrogate.incumbent_score is not None:
            gain = posterior.score - self._surrogate.incumbent_score
            spread = np.maximum(posterior.score_spread, LEAST_SPREAD)
            largest = float((log_feasible + log_expected_improvement(gain, spread)).max())
            self._largest_log_improvement = max(self._largest_log_improvement, largest)
            values = log_feasible + log_expected_improvement(gain, EXPLORATION * spread)
        if self._surrogate.history.n_finished >= THRESHOLD_FROM:
            values = np.where(self._reaches_thresholds(posterior), values, log_feasible - BELOW_THRESHOLD)
        return values

    def _reaches_thresholds(self, posterior: Posterior) -> Vector:
        share = self._surrogate.history.infeasible_share(THRESHOLD_WINDOW)
        runs = posterior.log_runs >= log_ndtr(RUNS_THRESHOLD[0] + RUNS_THRESHOLD[1] * share)
        satisfies = posterior.log_satisfies >= log_ndtr(SATISFIES_THRESHOLD[0] + SATISFIES_THRESHOLD[1] * share)
        return np.asarray(runs & satisfies)
