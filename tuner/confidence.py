"""The confidence level of every interval that is shown, and the quantiles that follow from it."""

from __future__ import annotations

import statistics

CONFIDENCE = 0.95
"""Probability with which a two-sided interval holds the true value."""

INTERVAL = f"{100 * CONFIDENCE:g} % interval"
"""How tables and texts name an interval."""

ONE_SIDED = f"{50 * (1 + CONFIDENCE):g} % confidence"
"""How texts name the confidence of one end of an interval."""


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution."""
    from scipy.special import stdtrit  # every reader of results imports this module, and few need a quantile

    return float(stdtrit(degrees, probability))


def t_factor(degrees: int, comparisons: int = 1) -> float:
    """Return the factor of a standard error in an interval that holds for several comparisons at once (Bonferroni)."""
    return t_quantile(1 - (1 - CONFIDENCE) / (2 * comparisons), degrees)


def normal_factor() -> float:
    """Return the factor of a known standard deviation in an interval."""
    return statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
