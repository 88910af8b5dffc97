"""The sequential test of the finals: what a round measures next, and when the rounds end.

The scores θ of n configurations, as logarithms, have the surrogate's posterior as their prior: N(m, C). A round r that
measures the configurations S adds

    y[i, r] = θ[i] + round[r] + error[i, r],    error ~ N(0, σ²)

The level of a round is unknown, so that only differences within it count. With P the projection that removes the mean
over S, the posterior is N(m', C'):

    C'⁻¹ = C⁻¹ + Σ_r P_r / σ²,    C'⁻¹ m' = C⁻¹ m + Σ_r P_r y_r / σ²

Source: Bayesian linear model with a flat prior of nuisance parameters; e.g. Gelman et al., Bayesian Data Analysis,
chapter 14. Each round measures the configuration that would be exported and its strongest rival (top-two sampling:
Russo, "Simple Bayesian algorithms for best-arm identification", Operations Research 68, 2020), and the smaller form
that is expected to save the most flags.

Most flags of a finalist do nothing, and the surrogate ascribes the luck of its trial to them. `shrunk` shrinks the
losses of its smaller forms towards 0.

The prior decides between configurations that are better than the reference. Whether one is better is decided by the
rounds alone: at the numbers of rounds of `looks`, each with an equal share of the error (group-sequential test,
error spending: Lan and DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70, 1983). The shares
are added without their correlation (Bonferroni), so that the stated error is an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import binom, ndtr

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

LEAST_LOSS, LARGEST_LOSS, TIE = 0.01, 0.025, 1.5
"""A configuration is as good as the best one if its expected loss of the score's logarithm is at most `TIE` standard
deviations of it; a smaller one than the first bound counts always, a larger one than the second never."""

RISK = 0.1
"""The rounds go on while the loss is larger than `LARGEST_LOSS` with more than this probability."""

OPEN = 0.1
"""Least probabilities that a smaller form is as good, and that it is better than the reference, for a measurement."""

LEAST_SAVED = 0.5
"""Least expected number of saved flags at which a smaller form is measured: the flags that it saves times the
probability that it is feasible and as good."""

LIKELY = 0.5
"""Least probability of being feasible with which a smaller form may be the target."""

IDLE_SHARE, EFFECT = 0.7, 0.1
"""Share of a finalist's flags that do nothing at all, and standard deviation of the effect of each other one."""

LEAST_ARMS = 3
"""Configurations in a round, the reference included, for which measurements are left up to the last look."""

LEAST_ROUNDS = 2
"""Rounds that an exported configuration needs."""

PRECISION = 0.05
"""A reference is kept for a lack of gain once the rounds exclude larger gains, unless they may take no more."""

SPREAD_FACTOR = 2.0
"""Factor on the surrogate's standard deviations, which are too small (docs/reports/2026-11-28-finals.md)."""

LEAST_SPREAD = 0.003
"""Standard deviation of each configuration's own deviation from the surrogate."""

LEAST_SEARCH_NOISE = 0.025
"""Standard deviation with which the single trial of a form counts at least: the fit of the search's noise may be far
too small."""

NOISE_WEIGHT = 4
"""Degrees of freedom with which the search's noise counts beside that of the rounds."""


def looks(rounds: int) -> tuple[int, ...]:
    """Return the numbers of rounds after which the rounds may end: two at a time, at most twice `rounds`."""
    return tuple(range(2, 2 * rounds + 1, 2)) if rounds > 1 else (rounds,)


def most_measurements(searched: int, rounds: int, finalists: int) -> int:
    """Return how many measurements the rounds may take, smaller forms included: half of the search's.

    In any case they may take as many as the search, up to those that measure `LEAST_ARMS` configurations until the
    last look, and each finalist in `rounds` rounds: with less, the interval of a gain is too wide to say anything.
    """
    return max(searched // 2, min(searched, LEAST_ARMS * looks(rounds)[-1]), rounds * (finalists + 1))


@dataclass(frozen=True)
class Arms:
    """Configurations that may take part, as arrays with one entry for each.

    Args:
        flags: their numbers of flags.
        origins: the position of the finalist that each is a form of; its own for a finalist and the reference.
        mean: prior mean of the logarithm of their scores.
        covariance: of that prior.
        noise: standard deviation of a measurement in the search.
        alive: whether each can still win: it did not fail and missed no SLO.
        feasible: the probability that each runs and meets the SLOs; 1 if it did.
        known: whether its server was measured in the search, so that it can be a rival.
        reference: position of the reference; None if it does not work.
        searched: the logarithms of the scores of the finals' single trials, by position. They are not part of the
            prior, and only their differences count.
    """

    flags: NDArray[np.int64]
    origins: NDArray[np.int64]
    mean: Vector
    covariance: Matrix
    noise: float
    alive: NDArray[np.bool_]
    feasible: Vector
    known: NDArray[np.bool_]
    reference: int | None
    searched: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What the rounds so far say.

    Args:
        target: the configuration with the fewest flags among those that are as good: what would be exported.
        arms: what the next round measures, the reference first.
        settled: whether the choice of the target is certain enough, and no smaller form is open.
        losses: expected loss of each configuration relative to the best one.
        as_good: whether each is as good as the best one.
        gain: mean and standard deviation of the target's score relative to the reference's, in logarithms.
    """

    target: int
    arms: tuple[int, ...]
    settled: bool
    losses: Vector
    as_good: NDArray[np.bool_]
    gain: tuple[float, float]


def posterior(arms: Arms, rounds: Sequence[Mapping[int, float]], noise: float) -> tuple[Vector, Matrix]:
    """Return mean and covariance after the rounds and the single trials, which count as one more round.

    Each round has the logarithm of a score by position.
    """
    precision = np.linalg.inv(arms.covariance * SPREAD_FACTOR**2 + LEAST_SPREAD**2 * np.eye(len(arms.mean)))
    weighted = precision @ arms.mean
    alone = max(noise, arms.noise, LEAST_SEARCH_NOISE)
    for cells, deviation in [(arms.searched, alone), *((cells, noise) for cells in rounds)]:
        places, values = list(cells), np.array(list(cells.values()))
        projection = (np.eye(len(places)) - 1.0 / max(1, len(places))) / deviation**2
        precision[np.ix_(places, places)] += projection
        weighted[places] += projection @ values
    covariance = np.linalg.inv(precision)
    return covariance @ weighted, covariance


def shrunk(mean: Vector, covariance: Matrix, origins: NDArray[np.int64], left_out: NDArray[np.int64]) -> Vector:
    """Return the means after the losses of smaller forms are shrunk towards 0.

    Of the k flags that a form leaves out, J ~ Binomial(k, 1 - p) do something, each with the variance e². With the loss
    L of a form relative to its finalist, its standard deviation s, and φ(x; s) the normal density,

        E[L] = L Σ_j P(j) j e² / (s² + j e²),    P(j) ∝ Binomial(j; k, 1 - p) φ(L; √(s² + j e²)),

    p = IDLE_SHARE, e = EFFECT (spike and slab: Mitchell and Beauchamp, "Bayesian variable selection in linear
    regression", JASA 83, 1988). Losses below 0 are shrunk in the same way.

    Args:
        mean: of each configuration.
        covariance: of the means, shape (n, n).
        origins: the position of each one's finalist, its own for a finalist.
        left_out: how many flags fewer than its finalist each one has.
    """
    variances = np.diag(covariance)
    apart = variances + variances[origins] - 2.0 * covariance[np.arange(len(mean)), origins]
    squares, losses = np.maximum(apart, 1e-12)[:, None], mean[origins] - mean
    acting, most = np.arange(left_out.max(initial=0) + 1)[None, :], left_out[:, None]
    effects = EFFECT**2 * acting
    weights = binom(most, acting) * (1.0 - IDLE_SHARE) ** acting * IDLE_SHARE ** np.maximum(most - acting, 0)
    exponents = -0.5 * losses[:, None] ** 2 / (squares + effects)
    weights *= np.exp(exponents - exponents.max(axis=1, keepdims=True)) / np.sqrt(squares + effects)
    kept = (weights * effects / (squares + effects)).sum(axis=1) / weights.sum(axis=1)
    return np.asarray(mean[origins] - losses * kept)


def pooled(deviation: float, degrees: int, noise: float) -> float:
    """Return the noise of a measurement from that of the rounds and that of the search."""
    return math.sqrt((degrees * deviation**2 + NOISE_WEIGHT * noise**2) / (degrees + NOISE_WEIGHT))


def plan(arms: Arms, rounds: Sequence[Mapping[int, float]], noise: float) -> Plan | None:
    """Return what the rounds say; None if no configuration can win.

    Args:
        arms: the configurations.
        rounds: of each, the logarithm of the score of each configuration in it, by position.
        noise: standard deviation of a measurement's logarithm.
    """
    mean, covariance = posterior(arms, rounds, noise)
    mean = shrunk(mean, covariance, arms.origins, arms.flags[arms.origins] - arms.flags)
    counts = np.array([sum(place in cells for cells in rounds) for place in range(len(mean))])
    measured = arms.alive & (counts > 0)
    measured = measured if measured.any() else arms.alive & arms.known
    if not measured.any():
        return None
    best = int(np.argmax(np.where(measured, mean, -np.inf)))
    losses, spread = mean[best] - mean, _spreads(covariance, best)
    worth = arms.alive & (arms.known | (counts > 0) | _may_beat(arms, mean, covariance))
    as_good = worth & (arms.feasible >= LIKELY) & (losses <= np.clip(TIE * spread, LEAST_LOSS, LARGEST_LOSS))
    target = int(min(np.flatnonzero(as_good), key=lambda place: (arms.flags[place], losses[place])))
    risks = np.where(measured, ndtr((losses[target] - losses - LARGEST_LOSS) / _spreads(covariance, target)), 0.0)
    risks[target] = 0.0
    rivals = [int(place) for place in np.argsort(-risks) if risks[place] > RISK]
    chance = arms.feasible * ndtr((LEAST_LOSS - losses) / spread)
    saved = np.where(worth & (chance >= OPEN), np.maximum(arms.flags[target] - arms.flags, 0) * chance, 0.0)
    smaller = [int(np.argmax(saved))] if saved.max() >= LEAST_SAVED else []
    reference = target if arms.reference is None else arms.reference
    group = [reference, target, *(rivals[:1] or [best]), *smaller, *rivals[1:2]]
    settled = not rivals and not smaller and bool(counts[target] >= LEAST_ROUNDS)
    gain = float(mean[target] - mean[reference]), float(_spreads(covariance, target)[reference])
    return Plan(target, tuple(dict.fromkeys(group)), settled, losses, as_good, gain)


def _may_beat(arms: Arms, mean: Vector, covariance: Matrix) -> NDArray[np.bool_]:
    """Return which configurations are better than the reference with probability `OPEN`.

    Without a reference all count. They also do where a finalist stands in for a reference that fails, because that
    finalist can win itself.
    """
    if arms.reference is None or arms.alive[arms.reference]:
        return np.full(len(mean), True)
    gains = mean - mean[arms.reference]
    return np.asarray(ndtr(gains / _spreads(covariance, arms.reference)) >= OPEN)


def _spreads(covariance: Matrix, place: int) -> Vector:
    """Return the standard deviation of the difference of each score to that of one place."""
    variances = np.diag(covariance)
    return np.asarray(np.sqrt(np.maximum(variances + variances[place] - 2.0 * covariance[place], 1e-12)))
