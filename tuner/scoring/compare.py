"""The ratio of each finalist to the defaults, with a confidence interval.

The finalists and the defaults are measured once in each of R rounds. On logarithms of a metric the additive model

    y[i, r] = configuration[i] + round[r] + error[i, r]

has the least-squares contrast  d[i] = mean over r of (y[i, r] - y[defaults, r])  and the residual variance
s2 = sum of squared residuals / ((k - 1)(R - 1)) for k configurations. Its interval is

    d[i] +- t(1 - alpha / (2 m), (k - 1)(R - 1)) * sqrt(2 s2 / R)

with m = k - 1 comparisons (Bonferroni), because the winner is the best of several. exp(d[i]) is the ratio.
Source: two-way layout without interaction, one observation a cell; e.g. Montgomery, Design and Analysis of Experiments,
chapter 4 (randomized complete block design).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage.records import TrialOutcome, TrialRecord
from tuner.scoring.score import finite_exp

ALPHA = 0.05


@dataclass(frozen=True)
class Ratio:
    """A ratio to the defaults with its interval; `low` and `high` are None with fewer than two rounds."""

    ratio: float
    low: float | None
    high: float | None
    rounds: int

    @property
    def beyond_noise(self) -> bool:
        """True if the whole interval lies above 1."""
        return self.low is not None and self.low > 1.0


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def compare(logs: Mapping[int, Sequence[float]], reference: int, alpha: float = ALPHA) -> dict[int, Ratio]:
    """Compare every configuration with the reference.

    Args:
        logs: the logarithms of each configuration's values, shape (R,), all with the rounds in the same order.
        reference: the key of the defaults.
        alpha: 1 - simultaneous confidence.

    Returns:
        Ratio to the reference by configuration, without the reference itself.

    Raises:
        ValueError: when the rounds are unequal or the reference is missing.
    """
    if reference not in logs:
        raise ValueError(f"the reference {reference} is not among {sorted(logs)}")
    rounds = len(logs[reference])
    if rounds == 0 or any(len(values) != rounds for values in logs.values()):
        raise ValueError("every configuration needs one value in each round")
    others = [key for key in logs if key != reference]
    half = _half_width(logs, rounds, alpha, len(others))
    result = {}
    for key in others:
        contrast = sum(a - b for a, b in zip(logs[key], logs[reference], strict=True)) / rounds
        low = None if half is None else finite_exp(contrast - half)
        high = None if half is None else finite_exp(contrast + half)
        result[key] = Ratio(finite_exp(contrast), low, high, rounds)
    return result


def pooled_ratio(differences: Sequence[float], deviation: float, degrees: int, comparisons: int) -> Ratio:
    """Return the ratio from differences of logarithms in rounds of several groups.

    Args:
        differences: one for each round.
        deviation: standard deviation of one measurement, from `residual_squares` of all groups.
        degrees: its degrees of freedom.
        comparisons: m, as in `compare`.
    """
    mean = sum(differences) / len(differences)
    half = t_quantile(1 - ALPHA / (2 * comparisons), degrees) * deviation * math.sqrt(2 / len(differences))
    return Ratio(finite_exp(mean), finite_exp(mean - half), finite_exp(mean + half), len(differences))


def _half_width(logs: Mapping[int, Sequence[float]], rounds: int, alpha: float, comparisons: int) -> float | None:
    """Return the half-width of every contrast's interval; None where there are no degrees of freedom."""
    squares, degrees = residual_squares(logs)
    if not degrees:
        return None
    return t_quantile(1 - alpha / (2 * comparisons), degrees) * math.sqrt(2 * squares / degrees / rounds)


def residual_squares(logs: Mapping[int, Sequence[float]]) -> tuple[float, int]:
    """Return the sum of the squared residuals and its degrees of freedom, 0 without two configurations and rounds.

    Args:
        logs: as in `compare`.
    """
    rows = list(logs.values())
    rounds = len(rows[0]) if rows else 0
    degrees = (len(rows) - 1) * (rounds - 1)
    if len(rows) < 2 or rounds < 2:
        return 0.0, 0
    grand = sum(sum(row) for row in rows) / (len(rows) * rounds)
    row_means = [sum(row) / rounds for row in rows]
    column_means = [sum(row[r] for row in rows) / len(rows) for r in range(rounds)]
    residual = sum(
        (row[r] - row_means[i] - column_means[r] + grand) ** 2 for i, row in enumerate(rows) for r in range(rounds)
    )
    return residual, degrees


@dataclass(frozen=True)
class MeasuredRatio:
    """A metric of two configurations: values of the first and second, and the second relative to the first.

    The values are geometric means, whose ratio is `ratio`; medians where a value is absent or not positive, which has
    no ratio. `basis` says what the interval rests on: `3 rounds` with both, or `3 and 1 repeats`.
    """

    one: float | None
    other: float | None
    ratio: float | None
    low: float | None
    high: float | None
    basis: str


def measured_ratios(
    one: Sequence[TrialRecord], other: Sequence[TrialRecord], names: Sequence[str], *, paired: bool
) -> dict[str, MeasuredRatio]:
    """Return the ratio of each metric of two trials, with a 95 % interval where there are at least two of each.

    Args:
        one: the reference's trial and its measurements in rounds.
        other: those of the trial that is compared with it.
        names: the metrics.
        paired: whether both are of one study, so that their rounds are the same.
    """
    rounds = [{r.round: r.outcome for r in records if r.outcome and r.outcome.succeeded} for records in (one, other)]
    common = sorted(({*rounds[0]} & {*rounds[1]}) - {0}) if paired else []
    return {name: _measured_ratio(rounds, common, name) for name in names}


def _measured_ratio(rounds: Sequence[Mapping[int, TrialOutcome]], common: Sequence[int], name: str) -> MeasuredRatio:
    if common:
        columns = [[each[round_].metric(name) for round_ in common] for each in rounds]
        basis = f"{len(common)} rounds" if len(common) > 1 else "1 round"
    else:
        chosen = [[o for number, o in each.items() if number] or list(each.values()) for each in rounds]
        columns = [[r.metrics.get(name) for o in outcomes for r in o.repeats] for outcomes in chosen]
        basis = f"{len(columns[0])} and {len(columns[1])} repeats"
    present = [[value for value in column if value is not None] for column in columns]
    one, other = (statistics.median(values) if values else None for values in present)
    logs = [[math.log(value) for value in values if value > 0] for values in present]
    whole = all(values and len(values) == len(column) for values, column in zip(logs, columns, strict=True))
    if not whole:
        return MeasuredRatio(one, other, None, None, None, basis)
    one, other = (finite_exp(statistics.fmean(values)) for values in logs)
    if common:
        differences = [b - a for a, b in zip(*logs, strict=True)]
        mean, degrees = statistics.fmean(differences), len(differences) - 1
        error = statistics.stdev(differences) / math.sqrt(len(differences)) if degrees else None
    else:
        mean, degrees = statistics.fmean(logs[1]) - statistics.fmean(logs[0]), min(map(len, logs)) - 1
        error = math.sqrt(sum(statistics.variance(v) / len(v) for v in logs)) if degrees else None
    if error is None:
        return MeasuredRatio(one, other, finite_exp(mean), None, None, basis)
    half = t_quantile(1 - ALPHA / 2, degrees) * error
    return MeasuredRatio(one, other, finite_exp(mean), finite_exp(mean - half), finite_exp(mean + half), basis)
