"""Ratios of measurements with confidence intervals: the method of every table, report and export.

**In rounds.** A round measures several configurations once each. On logarithms of a metric, with the additive model

    y[i, r] = configuration[i] + round[r] + error[i, r]

two configurations are compared by  d = mean over the R rounds with both of (y[i, r] - y[j, r]).  The variance of the
errors is that of the least-squares fit to all n measurements, with p independent parameters:

    s2 = sum of squared residuals / f,   f = n - p

and the interval is

    d +- t(1 - alpha / (2 m), f) * s * sqrt(2 / R)

with m comparisons (Bonferroni), because the winner is the best of several; each number of rounds after which they may
end counts as a comparison, too. exp(d) is the ratio.
Source: two-way layout without interaction, incomplete blocks; e.g. Montgomery, Design and Analysis of Experiments,
chapter 4.

**Without a common round** the benchmarks of each trial are compared: n of one, m of the other. With N benchmarks of K
trials and the pooled variance  s2 = sum of (y - mean of y for its trial)^2 / (N - K)  the interval is

    d +- t(1 - alpha / 2, N - K) * s * sqrt(1 / n + 1 / m)

Source: one-way layout, the same book, chapter 3. Benchmarks of one server vary less than servers do.

s counts as at least `LEAST_DEVIATION` in both: with few rounds, a small one is luck.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.confidence import t_factor
from tuner.scoring.goals import finite_exp

LEAST_DEVIATION = 0.005
"""Least standard deviation of the logarithm of one measurement: two starts of one server differ by that much."""

_NO_VARIATION = 1e-9
"""Deviation and difference up to which all values are the same, such as success rates of 1: there is no interval."""


@dataclass(frozen=True)
class Ratio:
    """A ratio to the reference with its interval; `low` and `high` are None with fewer than two rounds.

    `rounds` is the number of rounds that measured both; 0 for a ratio from the benchmarks of separate servers.
    """

    ratio: float
    low: float | None
    high: float | None
    rounds: int

    @property
    def beyond_noise(self) -> bool:
        """True if the whole interval lies above 1."""
        return self.low is not None and self.low > 1.0

    def inverse(self) -> Ratio:
        """Return the ratio the other way round."""
        low, high = (None if end is None else 1.0 / end for end in (self.high, self.low))
        return Ratio(1.0 / self.ratio, low, high, self.rounds)


@dataclass(frozen=True)
class Noise:
    """The standard deviation of one measurement, and its degrees of freedom, at least 1."""

    deviation: float
    degrees: int

    def half_width(self, share: float, comparisons: int = 1) -> float:
        """Return half of an interval; `share` is the variance of what is estimated over that of one measurement."""
        return t_factor(self.degrees, comparisons) * self.deviation * math.sqrt(share)

    def at_least(self, deviation: float) -> Noise:
        """Return the noise with a least standard deviation."""
        return Noise(max(self.deviation, deviation), self.degrees)


def residual_noise(cells: Mapping[tuple[int, int], float]) -> Noise | None:
    """Return the noise of the two-way layout; None without two configurations in two rounds.

    Args:
        cells: the logarithm of each measurement, by configuration and round.
    """
    import numpy as np  # every reader of results imports this module, and few need the noise

    rows, columns = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    if len(cells) < 4:
        return None
    design = np.zeros((len(cells), len(rows) + len(columns)))
    for place, (row, column) in enumerate(cells):
        design[place, rows.index(row)] = design[place, len(rows) + columns.index(column)] = 1.0
    values = np.array(list(cells.values()))
    fit, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    degrees = len(cells) - int(rank)
    return Noise(float(np.linalg.norm(values - design @ fit)) / math.sqrt(degrees), degrees) if degrees else None


def pooled_noise(groups: Iterable[Sequence[float]]) -> Noise | None:
    """Return the noise of the one-way layout; None if no group has two values."""
    squares, degrees = 0.0, 0
    for group in groups:
        if len(group) > 1:
            squares += statistics.variance(group) * (len(group) - 1)
            degrees += len(group) - 1
    return Noise(math.sqrt(squares / degrees), degrees) if degrees else None


def paired_ratio(differences: Sequence[float], noise: Noise | None, comparisons: int) -> Ratio:
    """Return the ratio from the differences of logarithms in common rounds.

    Args:
        differences: one for each round, at least one.
        noise: of one measurement's logarithm; None if it is not known, or nothing varies.
        comparisons: m of the module's docstring.
    """
    return _ratio(statistics.fmean(differences), noise, 2 / len(differences), comparisons, len(differences))


def unpaired_ratio(one: Sequence[float], other: Sequence[float], noise: Noise | None) -> Ratio:
    """Return the ratio of the second to the first from logarithms of their benchmarks, at least one each."""
    return _ratio(statistics.fmean(other) - statistics.fmean(one), noise, 1 / len(one) + 1 / len(other), 1, 0)


def _ratio(mean: float, noise: Noise | None, share: float, comparisons: int, rounds: int) -> Ratio:
    if noise is None or (abs(mean) <= _NO_VARIATION and noise.deviation <= _NO_VARIATION):
        return Ratio(finite_exp(mean), None, None, rounds)
    half = noise.at_least(LEAST_DEVIATION).half_width(share, comparisons)
    return Ratio(finite_exp(mean), finite_exp(mean - half), finite_exp(mean + half), rounds)


def logarithms(values: Iterable[float | None]) -> list[float] | None:
    """Return the logarithms of values; None if one is absent or not positive, or there is none."""
    listed = list(values)
    found = [math.log(value) for value in listed if value is not None and value > 0]
    return found if found and len(found) == len(listed) else None


@dataclass(frozen=True)
class MeasuredRatio:
    """A metric of two trials: values of the first and second, and the second relative to the first.

    The values are those of `records.measured.measured`. There is no ratio where one is absent or not positive. `basis`
    says what the interval rests on: `3 rounds` with both, or `3 and 1 repeats`.
    """

    one: float | None
    other: float | None
    ratio: float | None
    low: float | None
    high: float | None
    basis: str
