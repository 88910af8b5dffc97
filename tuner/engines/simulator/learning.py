"""The posterior of a host's parameters, and the errors that remain, from its measured trials.

A trial i is a lesson (`records.lessons`): its errors y_im = ln(measured / predicted) of the metrics m, predicted at the
parameters x_i, and the slopes J_im of ln predicted. A parameter is ln(value / stored value). A slope is the secant from
one prior deviation s (`LEARNED`) below to one above: a server that waits for its GPU at x_i may wait for its host at
the true values, and a derivative at x_i would be 0. A study computes a lesson twice: at the
parameters that it began with, and, to keep, at the mode of x that this first lesson gives. With

    x ~ N(0, diag(s²)),    y_im = J_im (x - x_i) + e_im,    e_im ~ t₄(0, σ_m²)

The mode of x is the fixed point of Gauss-Newton steps (Bell and Cathey, "The iterated Kalman filter update as a
Gauss-Newton method", IEEE TAC 1993), with the weights of the t distribution (Lange, Little and Taylor, "Robust
statistical modeling using the t distribution", JASA 1989). The errors of a trial's M metrics are not independent, and
count as one:

    r_im = y_im - J_im (x - x_i),    q_im = 5 / (4 + r_im² / σ_m²) / (M σ_m²)
    Σ = (diag(s⁻²) + Σ_im q_im J_imᵀ J_im)⁻¹,    x = Σ Σ_im q_im J_imᵀ (y_im + J_im x_i)

The deviation σ_m of what no parameter explains has a scaled inverse χ² prior with `PRIOR_TRIALS` degrees of freedom
(Gelman et al., "Bayesian Data Analysis", section 2.6), and the band of a prediction with the slopes J follows:

    σ_m² = (5 S_m² + Σ_i min(r_im², 4)) / (5 + n),    band = t₀.₉₅(5 + n) √(σ_m² + J Σ Jᵀ)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from records.lessons import Lesson, Site
from tuner.confidence import t_quantile
from tuner.engines.simulator.parameters import HIGHEST_SHARE
from tuner.engines.simulator.prediction import Platform

Metrics = Mapping[str, float | None]
Vector = NDArray[np.float64]
Linearised = tuple[Metrics, dict[str, dict[str, float]]]
"""A prediction, and its slopes by metric and parameter."""

OF_HOST = ("host_speed", "launch_us")
"""Learned values of the card's profile; the others are `Parameters`."""
OF_EXPERTS = {"expert_bandwidth_share": 0.15, "expert_launches_per_layer": 0.4, "expert_kernels_per_layer": 0.3}
LEARNED = {
    "host_speed": 0.4,
    "launch_us": 0.7,
    "bandwidth_share": 0.1,
    "arithmetic_share": 0.15,
    "native_arithmetic_factor": 0.2,
    "attention_arithmetic_share": 0.3,
    "kernel_us": 0.2,
    **OF_EXPERTS,
}
"""The learned parameters with the prior deviations of their logarithms: hosts differ more than cards.

Beside H200s, two known hosts have 1.5 and 0.8 times the speed of the usual one, and 0.4 and 1.5 times its launch time.
"""
UNEXPLAINED = {
    "output_throughput": 0.12,
    "mean_tpot_ms": 0.15,
    "p99_tpot_ms": 0.18,
    "mean_ttft_ms": 0.3,
    "p99_ttft_ms": 0.45,
}
"""S_m: the deviation of predictions from the measured value where nothing was learned, near the documented bands."""
PRIOR_TRIALS = 5
LEAST_MOVE = 0.5
"""A study predicts anew once a prediction moves by this share of σ_m."""
_FREEDOM = 4.0
_LARGEST_ERROR = 2.0
_ITERATIONS = 10
_SPREADS = (0.5, 1.5)
_ONE_SIDE = 0.95
"""Nine of ten lie within a band, and one of twenty on each side."""


@dataclass(frozen=True)
class HostPosterior:
    """What the lessons of a host tell; vectors and the matrix are in the order of `LEARNED`.

    Attributes:
        lessons: that it follows from, at least one, the latest last.
        mean: x, the logarithms of the parameters' ratios to their stored values.
        covariance: Σ.
        deviations: σ by metric.
    """

    lessons: tuple[Lesson, ...]
    mean: Vector
    covariance: NDArray[np.float64]
    deviations: Mapping[str, float]

    @property
    def trials(self) -> int:
        """The number of lessons."""
        return len(self.lessons)

    @property
    def point(self) -> dict[str, float]:
        """The learned parameters."""
        return dict(zip(LEARNED, self.mean.tolist(), strict=True))

    @property
    def factors(self) -> dict[str, tuple[float, float]]:
        """The factor on the stored value of each parameter that was learned, and its relative deviation.

        Learned is what the trials made surer: a deviation of at most 0.9 of the prior's.
        """
        spreads = np.sqrt(np.diag(self.covariance))
        learned = zip(LEARNED.items(), self.mean, spreads, strict=True)
        return {name: (math.exp(x), float(spread)) for (name, prior), x, spread in learned if spread <= 0.9 * prior}

    def to_dict(self) -> dict[str, Any]:
        """Return, as plain JSON, what people are shown of it."""
        return {
            "host": self.lessons[-1].site.host,
            "trials": self.trials,
            "factors": {k: list(v) for k, v in self.factors.items()},
        }

    def bands(self, slopes: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return the relative error of each metric of a prediction with these slopes, which nine of ten stay below."""
        factor = t_quantile(_ONE_SIDE, PRIOR_TRIALS + self.trials)
        found = {}
        for metric, of_metric in slopes.items():
            row = _row(of_metric)
            spread = math.sqrt(self.deviations[metric] ** 2 + float(row @ self.covariance @ row))
            found[metric] = math.expm1(factor * spread)
        return found

    @property
    def spread(self) -> float:
        """The deviation of predictions here relative to that without lessons: the mean of the metrics' ratios.

        It is bounded: the lessons of a few configurations say little of others.
        """
        ratio = np.mean([self.deviations[metric] / UNEXPLAINED[metric] for metric in UNEXPLAINED])
        return float(np.clip(ratio, *_SPREADS))


def posterior(lessons: Sequence[Lesson]) -> HostPosterior | None:
    """Return what lessons tell, the latest last; None without any."""
    if not lessons:
        return None
    precision = np.diag([1 / deviation**2 for deviation in LEARNED.values()])
    mean, sharper, variances = np.zeros(len(LEARNED)), precision, np.array(list(UNEXPLAINED.values())) ** 2
    places, counts, targets, rows = (np.array(each) for each in zip(*_observed(lessons), strict=True))
    prior, trials = PRIOR_TRIALS * variances, PRIOR_TRIALS + np.bincount(places, minlength=len(UNEXPLAINED))
    for _ in range(_ITERATIONS):
        errors = targets - rows @ mean
        weights = (_FREEDOM + 1) / (_FREEDOM + errors**2 / variances[places]) / (counts * variances[places])
        sharper = precision + (rows.T * weights) @ rows
        mean = np.linalg.solve(sharper, rows.T @ (weights * targets))
        squares = np.minimum(np.abs(errors), _LARGEST_ERROR) ** 2
        variances = (prior + np.bincount(places, squares, len(UNEXPLAINED))) / trials
    deviations = dict(zip(UNEXPLAINED, np.sqrt(variances).tolist(), strict=True))
    return HostPosterior(tuple(lessons), mean, np.linalg.inv(sharper), deviations)


def follow(known: HostPosterior | None, used: HostPosterior | None, lessons: Sequence[Lesson]) -> HostPosterior | None:
    """Return what a study predicts with once its own trials have given lessons.

    Args:
        known: what earlier lessons tell.
        used: what the study has predicted with so far.
        lessons: of its own trials.

    Returns:
        The posterior of all lessons; `used` while that moves no prediction of the study's own trials by `LEAST_MOVE`.
    """
    found = posterior([*(() if known is None else known.lessons), *lessons])
    if found is None:
        return used
    moved_by = found.mean if used is None else found.mean - used.mean
    slopes = [(metric, of_metric) for lesson in lessons for metric, of_metric in lesson.slopes.items()]
    moves = (abs(float(_row(of_metric) @ moved_by)) / found.deviations[metric] for metric, of_metric in slopes)
    return found if max(moves, default=0.0) >= LEAST_MOVE else used


def _observed(lessons: Sequence[Lesson]) -> Iterable[tuple[int, int, float, Vector]]:
    """Yield, for each metric of each lesson: its place in `UNEXPLAINED`, the lesson's metrics, y + J x_i, and J."""
    places = {metric: place for place, metric in enumerate(UNEXPLAINED)}
    for lesson in lessons:
        point = _row(lesson.point)
        for metric, error in lesson.errors.items():
            row = _row(lesson.slopes[metric])
            yield places[metric], len(lesson.errors), error + float(row @ point), row


def _row(values: Mapping[str, float]) -> Vector:
    return np.array([values.get(name, 0.0) for name in LEARNED])


def linearised(
    platform: Platform, predict: Callable[[Platform], Metrics | None], point: Mapping[str, float], *, experts: bool
) -> Linearised | None:
    """Return a prediction at parameters and its slopes by metric; None if nothing would be completed there.

    Args:
        platform: with the stored parameters.
        predict: predicts the metrics of one server and load.
        point: the parameters.
        experts: whether the model has experts.
    """
    base = predict(moved(platform, point))
    if base is None:
        return None
    slopes: dict[str, dict[str, float]] = {metric: {} for metric in UNEXPLAINED if base.get(metric)}
    for name in LEARNED:
        if (name in OF_EXPERTS and not experts) or not _value(platform, name):
            continue
        beside = ({**point, name: point.get(name, 0.0) + way * LEARNED[name]} for way in (-1, 1))
        lower, upper = (predict(moved(platform, each)) or {} for each in beside)
        for metric, of_metric in slopes.items():
            before, after = lower.get(metric), upper.get(metric)
            if before and after and after != before:
                of_metric[name] = math.log(after / before) / (2 * LEARNED[name])
    return base, slopes


def lesson_of(
    site: Site,
    point: Mapping[str, float],
    predicted: Metrics,
    slopes: Mapping[str, Mapping[str, float]],
    measured: Metrics,
) -> Lesson | None:
    """Return the lesson of a measured trial; None if no metric of it is predicted."""
    errors = {
        metric: math.log(value / expected)
        for metric in slopes
        if (value := measured.get(metric)) and (expected := predicted[metric])
    }
    return Lesson(site, point, errors, {metric: slopes[metric] for metric in errors}) if errors else None


def moved(platform: Platform, point: Mapping[str, float]) -> Platform:
    """Return a platform whose parameters are moved from the stored ones; no share rises above 0.98."""
    changes: dict[str, Any] = {}
    for name, distance in point.items():
        value = _value(platform, name)
        if value:
            highest = max(value, HIGHEST_SHARE) if name.endswith("_share") else math.inf
            changes[name] = min(value * math.exp(distance), highest)
    of_host = {name: changes.pop(name) for name in OF_HOST if name in changes}
    card, parameters = replace(platform.card, **of_host), replace(platform.parameters, **changes)
    return replace(platform, card=card, parameters=parameters)


def _value(platform: Platform, name: str) -> float | None:
    value: float | None = getattr(platform.card if name in OF_HOST else platform.parameters, name)
    return value
