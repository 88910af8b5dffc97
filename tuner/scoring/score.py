"""The scalar score that ranks feasible trials.

The score of a trial relative to a reference (the defaults, trial 0; where they fail or are not measured, the first
trial that was) is the weighted geometric mean of its improvements:

    score = exp( sum_i w_i * ln(r_i) / sum_i w_i )

where r_i = value / reference for a metric that is better when higher and reference / value for one that is better when
lower. The reference scores exactly 1; a score of 1.10 means 10 % better, weighted over all metrics. The sums run over
the metrics that both sides measured, so the weights are renormalised.

The mean is geometric because improvements are ratios. Twice the throughput at twice the TPOT scores 1 with equal
weights, whichever of the two is the reference, and one tiny latency cannot outweigh everything else.

A metric that is better when higher may be 0, for example a goodput; its logarithm would be infinite. Such a 0 counts as
a hundredth of the smallest positive value that it is compared with. A latency of 0 cannot be compared, nor can a value
that is not finite.

Scores are finite: ratios beyond 1e-300 to 1e300 count as these limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from storage.metrics import Direction
from tuner.scoring.objectives import Objective

ZERO_RATIO = 0.01
"""What a 0 counts as, relative to the smallest positive value that it is compared with."""

LARGEST_RATIO = 1e300
"""Ratios are limited to this and its inverse, so that neither they nor their logarithms overflow."""

_LARGEST_LOG = math.log(LARGEST_RATIO)


def finite_exp(logarithm: float) -> float:
    """Return `exp(logarithm)`, limited to between `1 / LARGEST_RATIO` and `LARGEST_RATIO`."""
    return math.exp(max(-_LARGEST_LOG, min(logarithm, _LARGEST_LOG)))


def log_values(objective: Objective, values: Sequence[float | None]) -> list[float | None]:
    """Return the logarithm of each value, negated where lower is better; None for a value that cannot be compared.

    The difference between two results is the logarithm of an improvement.

    Args:
        objective: its direction says what is better.
        values: of its metric, in the metric's unit; all that are compared with each other.
    """
    comparable = _comparable(objective, values)
    sign = 1.0 if objective.direction is Direction.MAXIMIZE else -1.0
    return [None if value is None else sign * math.log(value) for value in comparable]


def improvement(objective: Objective, value: float, reference: float) -> float | None:
    """Return the factor by which `value` is better than `reference`: 1 is equal, 2 is twice as good.

    None if the two cannot be compared: both are 0, or one is and lower is better, or one is not finite.
    """
    value_, reference_ = _comparable(objective, [value, reference])
    if value_ is None or reference_ is None:
        return None
    ratio = value_ / reference_ if objective.direction is Direction.MAXIMIZE else reference_ / value_
    return max(1 / LARGEST_RATIO, min(ratio, LARGEST_RATIO))


def score(
    values: Mapping[str, float | None], reference: Mapping[str, float | None], objectives: Sequence[Objective]
) -> float | None:
    """Return the weighted geometric mean of improvements over `reference`; None if nothing can be compared.

    Args:
        values: metric name to value of the trial.
        reference: metric name to value of the reference.
        objectives: metrics with weights; those that either side lacks, or that cannot be compared, are left out.
    """
    improvements: list[tuple[float, float]] = []
    for objective in objectives:
        value, base = values.get(objective.metric), reference.get(objective.metric)
        factor = None if value is None or base is None else improvement(objective, value, base)
        if factor is not None:
            improvements.append((objective.weight, math.log(factor)))
    log_score = weighted_mean(improvements)
    return None if log_score is None else finite_exp(log_score)


def log_scores(runs: Sequence[Mapping[str, float | None]], objectives: Sequence[Objective]) -> list[float]:
    """Return the logarithm of the score of each run, up to one constant that all runs share.

    A metric that any run lacks, or that cannot be compared in any run, is left out of all: otherwise the runs' weights
    would differ, and with them the constant.

    Args:
        runs: metric name to value of each run; all that are compared with each other.
        objectives: metrics with weights.
    """
    columns: list[tuple[float, list[float]]] = []
    for objective in objectives:
        logs = log_values(objective, [run.get(objective.metric) for run in runs])
        present = [each for each in logs if each is not None]
        if len(present) == len(runs):
            columns.append((objective.weight, present))
    means = (weighted_mean([(weight, column[index]) for weight, column in columns]) for index in range(len(runs)))
    return [0.0 if mean is None else mean for mean in means]


def weighted_mean(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of the second elements, weighted by the first; None without any."""
    total = weighted = 0.0
    for weight, value in pairs:
        total += weight
        weighted += weight * value
    return weighted / total if total else None


def _comparable(objective: Objective, values: Sequence[float | None]) -> list[float | None]:
    """Return the values with each 0 of a maximised metric replaced; None for what cannot be compared."""
    finite = [value if value is not None and math.isfinite(value) else None for value in values]
    positive = [value for value in finite if value is not None and value > 0]
    floor = None
    if positive and objective.direction is Direction.MAXIMIZE:
        floor = ZERO_RATIO * min(positive) or math.ulp(0.0)
    return [None if value is None else value if value > 0 else floor for value in finite]
