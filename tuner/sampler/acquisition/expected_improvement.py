"""Expected improvement as a logarithm, which is finite and ordered where the expected improvement itself underflows."""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr

from tuner.sampler.surrogate.encoding import Vector


def log_expected_improvement(gain: Vector, spread: Vector) -> Vector:
    """Return ln E[max(X, 0)] for X ~ N(gain, spread²).

    With z = gain / spread,

        ln EI = ln(φ(z) + z Φ(z)) + ln spread,

    and for z < -1 with the Mills ratio R = Φ(z) / φ(z)

        ln EI = -z²/2 - ½ ln 2π + ln(1 - |z| R) + ln spread

    (Ament et al., "Unexpected improvements to expected improvement", NeurIPS 2023).

    Args:
        gain: means, shape (n,).
        spread: standard deviations, shape (n,); positive.
    """
    z = gain / spread
    low, high = np.minimum(z, -1.0), np.maximum(z, -1.0)
    half_log = 0.5 * np.log(2 * np.pi)
    mills = np.exp(log_ndtr(low) + 0.5 * low * low + half_log) * np.abs(low)
    below = -0.5 * low * low - half_log + np.log(np.maximum(1.0 - mills, 1e-12))
    above = np.log(np.exp(-0.5 * high * high - half_log) + high * np.exp(log_ndtr(high)))
    log_improvement: Vector = np.where(z < -1.0, below, above) + np.log(spread)
    return log_improvement
