"""Expected improvement, by logarithms: far from what is best it underflows, and climbing there needs its slope."""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr

from tuner.sampler.surrogate.encoding import Vector


def log_expected_improvement(gain: Vector, spread: Vector) -> Vector:
    """Return ln of the expected improvement over 0 of normal variables, also where it underflows.

    ln(φ(z) + z Φ(z)) + ln σ; below z = -1 by the Mills ratio (Ament et al., "Unexpected improvements to expected
    improvement", NeurIPS 2023).
    """
    z = gain / spread
    low, high = np.minimum(z, -1.0), np.maximum(z, -1.0)
    half_log = 0.5 * np.log(2 * np.pi)
    mills = np.exp(log_ndtr(low) + 0.5 * low * low + half_log) * np.abs(low)
    below = -0.5 * low * low - half_log + np.log(np.maximum(1.0 - mills, 1e-12))
    above = np.log(np.exp(-0.5 * high * high - half_log) + high * np.exp(log_ndtr(high)))
    found: Vector = np.where(z < -1.0, below, above) + np.log(spread)
    return found
