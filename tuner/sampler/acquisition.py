"""The acquisition function, expected improvement times the probability of feasibility, and its maximum.

A round of the local search evaluates every choice of every categorical parameter and some positions of every number,
one change at a time, and takes the best change that breaks no rule. The encoding of a changed configuration is
assembled from columns of the changed parameter: evaluating the define-by-run space for some hundred configurations a
round would take longer than all else. Only the chosen change is checked against the space.

Without predictions and source studies, candidates lie in a trust region around the best feasible trial. With them,
candidates are random configurations, neighbours of the best trials, the best of the source studies, all considered
predictions, and the results of local searches from the best of these. Every few trials, the least tried choice of
a categorical parameter is tried in the best configurations instead: parameters interact, and a choice that was bad in
one configuration may be good in another.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution
from scipy.special import log_ndtr

from tuner.sampler.candidates import CandidateSpace, count_conditional_parameters, few_changes
from tuner.sampler.encoding import EncodedConfigurations, Encoder, Matrix, Params, Vector, from_position
from tuner.sampler.surrogate import Posterior, Surrogate, SurrogateSettings


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


EXPLORATION, EXPLORATION_IN_REGION = 2.0, 1.0
"""Factors on the standard deviation of a candidate's score in the acquisition value, the second in a trust region."""
THRESHOLD_FROM = 12
"""Number of finished trials from which on candidates must reach the feasibility thresholds."""
THRESHOLD_WINDOW = 10
"""Number of latest trials whose infeasible share determines the thresholds."""
RUNS_THRESHOLD, SATISFIES_THRESHOLD = (1.6, 6.0), (1.0, 3.0)
"""Intercept a and slope b of the thresholds Φ(a + b · infeasible share).

A crash gives less information than a missed SLO, and the best configurations are often close to an SLO.
"""
UNTRIED = 1.0
"""Subtracted from a without predictions: a choice that was never tried is unlikely to reach the whole threshold."""
BELOW_THRESHOLD = 1e6
"""Penalty on the logarithm of the probability of feasibility below a threshold."""
LEAST_SPREAD = 1e-4
"""Least standard deviation of a score."""
RADIUS = 1
"""Number of changes from the incumbent with which a search without predictions begins."""
WIDER_EVERY = 8
"""Finished trials after which the least radius grows by one change."""
LEAST_SUCCESS = 0.05
"""Gain over the best score so far that counts as a success."""
FAILURES = 3
"""Trials in a row without a success after which the region becomes smaller."""
NUMBER_CHANGES = 3
"""Changes that a number counts across its whole range; a smaller step counts as its share of them, rounded up.

A number that crosses its range, such as 1,024 to 24 sequences, can violate an SLO as several choices do together.
"""
COST_OF_CHANGE = 0.15
"""Subtracted from the acquisition value, a logarithm, for each change of the defaults, where predictions exist."""
ROUNDING = 1e-9
"""A number that moves by a third of its range counts as one change, whatever the rounding error."""


class TrustRegion:
    """The configurations that differ from a centre by at most `radius` changes of the parameters that both have.

    Another choice is one change, a number `NUMBER_CHANGES` times the share of its range that it moves, rounded up.
    """

    def __init__(self, encoder: Encoder, centre: Params, radius: int) -> None:
        self.centre, self.radius = centre, radius
        self._first_columns = np.flatnonzero(np.diff(encoder.columns.rows, prepend=-1))
        self._row, self._absent = encoder.rows([centre, {}])
        every = encoder.distributions.values()
        self._is_choice = np.array([isinstance(each, CategoricalDistribution) for each in every])

    def excess(self, inputs: EncodedConfigurations) -> Vector:
        """Return by how many changes each configuration lies outside the region, shape (n,)."""
        moved = self._largest(np.abs(inputs.rows - self._row))
        changes = np.where(self._is_choice, moved > 0, np.ceil(NUMBER_CHANGES * moved - ROUNDING))
        both = self._largest(inputs.rows != self._absent) & self._largest((self._row != self._absent)[None, :])
        return np.asarray(np.maximum((changes * both).sum(axis=1) - self.radius, 0.0))

    def _largest(self, columns: NDArray[Any]) -> NDArray[Any]:
        """Return the largest value in the columns of each parameter, shape (n, parameters)."""
        return np.maximum.reduceat(columns, self._first_columns, axis=1)


def trust_radius(scores: Sequence[float | None]) -> int:
    """Return the radius after trials with the given scores, None for an infeasible one.

    A score above all before by `LEAST_SUCCESS` widens the region by one change, `FAILURES` others in a row narrow it
    (Eriksson et al., "Scalable global optimization via local Bayesian optimization", NeurIPS 2019). It is never below
    1 + trials / `WIDER_EVERY`: once the single effects are known, trials of several changes find the rest.
    """
    radius, failures, best = RADIUS, 0, -math.inf
    for score in scores:
        if score is not None and score > best + LEAST_SUCCESS:
            radius, failures = radius + (best > -math.inf), 0
        else:
            failures += 1
        best = best if score is None else max(best, score)
        if failures == FAILURES:
            radius, failures = max(RADIUS, radius - 1), 0
    return max(radius, RADIUS + len(scores) // WIDER_EVERY)


class FeasibleImprovement:
    """The acquisition function of one suggestion.

    With the incumbent's score t, the posterior mean μ and standard deviation σ of a candidate's score, and
    P = P(runs) P(satisfies) of `Surrogate.posterior`, the acquisition value is

        ln EI(μ - t, 2σ) + ln P

    (Gardner et al., "Bayesian optimization with inequality constraints", ICML 2014; the factor 2 adds exploration, and
    it is 1 in a trust region). It is ln P alone while no trial is feasible. After `THRESHOLD_FROM` trials, candidates
    must reach

        P(runs) >= Φ(1.6 + 6 u)    and    P(satisfies) >= Φ(1 + 3 u),    u = infeasible share of the latest trials,

    both with 1 less where a trust region holds, outside of which the value is 10⁶ lower for each change. With
    predictions it is `COST_OF_CHANGE` lower for each change of the defaults, so that changes that bring nothing go.

    Below a threshold the value is ln P - 10⁶: such candidates rank behind all others, the most feasible first.
    """

    def __init__(self, surrogate: Surrogate, region: TrustRegion | None) -> None:
        self._surrogate, self._region = surrogate, region
        defaults = surrogate.history.measured[0]
        self._defaults = TrustRegion(surrogate.encoder, defaults, 0) if surrogate.has_predictions else None

    def of(self, configs: list[Params]) -> Vector:
        """Return the acquisition values of configurations, their predictions interpolated, shape (n,)."""
        inputs = self._surrogate.encoder.encode(configs)
        return self(inputs, self._surrogate.interpolated_means(inputs))

    def __call__(self, inputs: EncodedConfigurations, means: Matrix | None = None) -> Vector:
        """Return the acquisition values of n encoded configurations, shape (n,).

        Without `means`, these are interpolated.
        """
        if means is None:
            means = self._surrogate.interpolated_means(inputs)
        posterior = self._surrogate.posterior(inputs, means)
        outside = np.zeros(len(inputs)) if self._region is None else self._region.excess(inputs)
        log_feasible = posterior.log_feasible
        values = log_feasible
        if self._surrogate.incumbent_score is not None:
            gain = posterior.score - self._surrogate.incumbent_score
            spread = np.maximum(posterior.score_spread, LEAST_SPREAD)
            exploration = EXPLORATION if self._region is None else EXPLORATION_IN_REGION
            values = log_feasible + log_expected_improvement(gain, exploration * spread)
        if self._defaults is not None:
            values = values - COST_OF_CHANGE * self._defaults.excess(inputs)
        if self._surrogate.history.n_finished >= THRESHOLD_FROM:
            values = np.where(self._reaches_thresholds(posterior), values, log_feasible - BELOW_THRESHOLD)
        return np.asarray(values - BELOW_THRESHOLD * outside)

    def _reaches_thresholds(self, posterior: Posterior) -> Vector:
        share = self._surrogate.history.infeasible_share(THRESHOLD_WINDOW)
        lower = 0.0 if self._region is None else UNTRIED
        runs = posterior.log_runs >= log_ndtr(RUNS_THRESHOLD[0] - lower + RUNS_THRESHOLD[1] * share)
        satisfies = posterior.log_satisfies >= log_ndtr(SATISFIES_THRESHOLD[0] - lower + SATISFIES_THRESHOLD[1] * share)
        return np.asarray(runs & satisfies)


POSITIONS = 6
"""Number of positions of a numeric parameter that a round evaluates."""
STARTS = 4
"""Number of configurations that local searches start from."""
ROUNDS = 8
"""Largest number of rounds."""
REJECTIONS = 5
"""Best changes of one round that are checked against the rules; if all break one, the configuration stays."""
LEAST_INCREASE = 1e-3
"""Increase of the acquisition value, a logarithm, below which a search ends."""

AcquisitionFunction: TypeAlias = Callable[[EncodedConfigurations], Vector]
"""Returns the acquisition values of n encoded configurations, shape (n,)."""


class SingleChanges:
    """All changes of one parameter that a search evaluates, encoded.

    `rng` draws the positions of numbers, one in each of `POSITIONS` equal parts of the range.
    """

    def __init__(self, encoder: Encoder, rng: np.random.Generator, defaults: Params) -> None:
        self.changes: list[tuple[str, Any]] = []
        """Name and new value of each change."""
        for name, distribution in encoder.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                self.changes += [(name, choice) for choice in distribution.choices]
            else:
                positions = [0.0, *((np.arange(POSITIONS) + rng.random(POSITIONS)) / POSITIONS), 1.0]
                values = [from_position(distribution, float(position)) for position in positions]
                self.changes += [(name, value) for value in (*values, defaults.get(name)) if value is not None]
        self._encoded = encoder.encode([{name: value} for name, value in self.changes])
        parameters = np.array([encoder.names.index(name) for name, _ in self.changes])
        self._changed_columns: NDArray[np.bool_] = parameters[:, None] == encoder.columns.rows[None, :]
        self._changed_features: NDArray[np.bool_] = parameters[:, None] == encoder.columns.effects[None, :]

    def apply(self, row: Vector, effects: Vector) -> EncodedConfigurations:
        """Return one configuration, given encoded, after each of the changes."""
        return EncodedConfigurations(
            np.where(self._changed_columns, self._encoded.rows, row),
            np.where(self._changed_features, self._encoded.effects, effects),
        )


def local_search(
    space: CandidateSpace,
    encoder: Encoder,
    acquisition: AcquisitionFunction,
    starts: Sequence[Params],
    rng: np.random.Generator,
    defaults: Params,
) -> list[Params]:
    """Return the configurations that the searches reach, those after each round included."""
    reached: list[Params] = []
    initial = acquisition(encoder.encode(starts))
    current = [(start, float(value)) for start, value in zip(starts, initial, strict=True)]
    changes = SingleChanges(encoder, rng, defaults)
    for _ in range(ROUNDS):
        changed = _best_changes(space, encoder, acquisition, changes, [config for config, _ in current], rng)
        values = acquisition(encoder.encode(changed)) if changed else np.zeros(0)
        pairs = zip(changed, values, (before for _, before in current), strict=True)
        current = [(config, float(value)) for config, value, before in pairs if value > before + LEAST_INCREASE]
        reached += [config for config, _ in current]
        if not current:
            break
    return reached


def _best_changes(
    space: CandidateSpace,
    encoder: Encoder,
    acquisition: AcquisitionFunction,
    changes: SingleChanges,
    configs: Sequence[Params],
    rng: np.random.Generator,
) -> list[Params]:
    encoded = encoder.encode(configs)
    changed = [changes.apply(row, effects) for row, effects in zip(encoded.rows, encoded.effects, strict=True)]
    values = acquisition(EncodedConfigurations.stack(changed)).reshape(len(configs), -1)
    values = values + LEAST_INCREASE * rng.random(values.shape)  # changes that are equally unknown come in any order
    return [
        _best_change(space, config, changes.changes, each, rng) for config, each in zip(configs, values, strict=True)
    ]


def _best_change(
    space: CandidateSpace, config: Params, changes: Sequence[tuple[str, Any]], values: Vector, rng: np.random.Generator
) -> Params:
    """Return a configuration after the change with the highest value that breaks no rule; itself if there is none."""
    rejections = 0
    for index in np.argsort(-values):
        name, value = changes[index]
        if name not in config or (config[name] == value and type(config[name]) is type(value)):
            continue
        changed = space.draw(rng, {**config, name: value})
        if changed is not None:
            return changed
        rejections += 1
        if rejections == REJECTIONS:
            break
    return config


RANDOM_CANDIDATES, NEIGHBOURS, BEST_TRIALS = 40, 40, 6
"""Numbers of random candidates, of neighbours, and of the best trials whose neighbours these are."""
PREDICTED_NEXT = 10
"""Number of the best candidates without a prediction that are predicted for the next suggestion."""
RARE_CHOICE_EVERY, RARE_CHOICE_CANDIDATES, RARE_CHOICE_LEADERS = 5, 60, 3
"""Finished trials between two tries of the least tried choice, its candidates, and the leaders that they change."""
RARE_CHOICES_FROM = 10
"""Finished trials from which on there are rare choices where predictions exist, which the first trials follow."""


@dataclass(frozen=True)
class Suggestion:
    """A configuration to measure next.

    Args:
        params: the configuration; empty if there is no candidate.
        predict_next: the best candidates without a prediction; the next suggestion considers their predictions.
    """

    params: Params
    predict_next: Sequence[Params] = ()


class CandidateSelection:
    """One selection by a fitted surrogate. To be used within `single_blas_thread`."""

    def __init__(
        self, space: CandidateSpace, settings: SurrogateSettings, surrogate: Surrogate, rng: np.random.Generator
    ) -> None:
        self._space, self._surrogate, self._rng = space, surrogate, rng
        self._prior, self._transfer = settings.prior, settings.transfer
        self._history = surrogate.history
        self._excluded = self._history.excluded
        guided = self._prior.exists or self._transfer.exists or surrogate.incumbent_score is None
        self._region = None
        if not guided:
            self._region = TrustRegion(surrogate.encoder, surrogate.centre(), trust_radius(surrogate.scores_in_order()))
        self._acquisition = FeasibleImprovement(surrogate, self._region)

    def suggest(self) -> Suggestion:
        """Return the configuration to measure next."""
        finished = self._history.n_finished
        is_switch = finished % RARE_CHOICE_EVERY == 0 and (finished >= RARE_CHOICES_FROM or not self._prior.exists)
        if is_switch and (rare := self._with_rare_choice()) is not None:
            return Suggestion(rare)
        centre = self._leaders()[0] if self._region is None else self._region.centre
        candidates = [*self._drawn(), *self._transfer.best(self._surrogate.scales)]
        candidates = self._untried(candidates) or candidates
        predicted, unpredicted = self._predicted(), _pairs(self._acquisition.of(candidates), candidates)
        starts = [config for _, config in heapq.nlargest(STARTS - 1, [*predicted, *unpredicted], key=_value)]
        encoder, defaults = self._surrogate.encoder, self._history.measured[0]
        searched = local_search(self._space, encoder, self._acquisition, [*starts, centre], self._rng, defaults)
        reached = self._untried(searched)
        if reached:
            unpredicted += _pairs(self._acquisition.of(reached), reached)
        return self._select(predicted, unpredicted)

    def _predicted(self) -> list[tuple[float, Params]]:
        """Return the acquisition values of the considered predictions that were not tried."""
        considered = self._prior.considered
        if not considered:
            return []
        pairs = _pairs(self._acquisition(*self._surrogate.predicted_means()), considered)
        return [pair for pair in pairs if frozenset(pair[1].items()) not in self._excluded]

    def _select(self, predicted: list[tuple[float, Params]], unpredicted: list[tuple[float, Params]]) -> Suggestion:
        """Return the best candidate that breaks no rule, one with a prediction if there is a prior.

        No prediction is computed here: the best candidates without one are queued for the next suggestion.
        """
        best_unpredicted = self._allowed(unpredicted, PREDICTED_NEXT if self._prior.exists else 1)
        best = next(iter(self._allowed(predicted, 1) or best_unpredicted), {})
        return Suggestion(best, tuple(best_unpredicted))

    def _allowed(self, candidates: list[tuple[float, Params]], count: int) -> list[Params]:
        """Return the best candidates that break no rule, at most `count`."""
        allowed: list[Params] = []
        for _, config in sorted(candidates, key=_value, reverse=True):
            if len(allowed) == count:
                break
            if config not in allowed and self._space.allows(config):
                allowed.append(config)
        return allowed

    def _with_rare_choice(self) -> Params | None:
        """Return a leader with the choice that was tried least; None if none reaches the feasibility thresholds.

        In a trust region the leader is its centre, and no threshold counts: a choice may look infeasible because of
        what it was tried with.

        The count of a choice is divided by 1 + the number of parameters that exist only beside it, because these have
        to be tried too.
        """
        leaders = self._leaders()[:RARE_CHOICE_LEADERS] if self._region is None else [self._region.centre]
        counts = {
            (name, choice): sum(name in config and config[name] == choice for config in self._history.tried)
            for name, distribution in self._space.distributions.items()
            if isinstance(distribution, CategoricalDistribution) and any(name in leader for leader in leaders)
            for choice in distribution.choices
        }
        if not counts:
            return None
        conditional = count_conditional_parameters(self._history.tried)
        name, choice = min(counts, key=lambda key: (counts[key] / (1 + conditional[key]), self._rng.random()))
        draws = [
            self._space.draw(self._rng, {**leaders[index % len(leaders)], name: choice})
            for index in range(RARE_CHOICE_CANDIDATES)
        ]
        candidates = self._untried([config for config in draws if config is not None and config.get(name) == choice])
        values = self._acquisition.of(candidates) if candidates else np.zeros(0)
        reaches = bool(candidates) and (self._region is not None or values.max() > -BELOW_THRESHOLD / 2)
        return candidates[int(np.argmax(values))] if reaches else None

    def _drawn(self) -> list[Params]:
        """Return random configurations, in the trust region if there is one; some may break a rule."""
        rng, space = self._rng, self._space
        if self._region is not None:
            counts = rng.integers(1, self._region.radius + 1, NEIGHBOURS)
            draws = [space.neighbour(rng, self._region.centre, int(count), checked=False) for count in counts]
        else:
            leaders = self._leaders()
            draws = [space.draw(rng, checked=False) for _ in range(RANDOM_CANDIDATES)]
            draws += [
                space.neighbour(rng, leaders[index % len(leaders)], few_changes(rng), checked=False)
                for index in range(NEIGHBOURS)
            ]
        return [config for config in draws if config is not None]

    def _leaders(self) -> list[Params]:
        """Return the measured configurations with the highest acquisition values."""
        measured = self._history.measured
        values = self._acquisition(self._surrogate.measured, self._surrogate.measured_means)
        return [measured[index] for index in np.argsort(-values)[:BEST_TRIALS]]

    def _untried(self, configs: Sequence[Params]) -> list[Params]:
        return [config for config in configs if frozenset(config.items()) not in self._excluded]


def _pairs(values: Vector, configs: Sequence[Params]) -> list[tuple[float, Params]]:
    return [(float(value), config) for value, config in zip(values, configs, strict=True)]


def _value(pair: tuple[float, Params]) -> float:
    return pair[0]
