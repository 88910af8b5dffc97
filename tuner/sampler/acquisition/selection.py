"""One choice of what to measure next.

Measured minus predicted is a Gaussian process, so a prediction that is right needs no learning, and one that is wrong
is corrected, first as a whole, then where it is wrong. Promises (SLOs) are outputs of the same process, failures have
one of their own. What is proposed has the highest expected improvement of the score over what is thought the best so
far, times the probability that it runs and keeps its promises (Gardner et al., "Bayesian optimization with inequality
constraints", ICML 2014). After the first trials that probability has to reach a level that rises with what was lost
lately. Every few trials the choice that was tried least is tried in the best configurations: flags interact, and what
was bad beside others may be good beside these.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.study import StudyDirection
from scipy.special import log_ndtr
from threadpoolctl import ThreadpoolController

from tuner.sampler.acquisition.candidates import CandidateSpace, opened_parameters
from tuner.sampler.acquisition.expected_improvement import log_expected_improvement
from tuner.sampler.acquisition.local_search import CLIMBERS, local_search
from tuner.sampler.prior.prior_cache import PriorCache
from tuner.sampler.surrogate.encoding import Encoder, Matrix, Params, Vector
from tuner.sampler.surrogate.gaussian_process import GaussianProcess, PriorScales
from tuner.sampler.surrogate.history import History, scales_of, squeezed
from tuner.sampler.transfer import Transfer

DRAWN, NEAR, LEADERS = 40, 40, 6
"""Candidates: new ones drawn at random, and neighbours of what is thought best; the best of them climb."""
AHEAD = 10
"""New candidates that are to be predicted before the next choice, the most promising ones; all others are guessed."""
SWITCH_EVERY, SWITCHED = 5, 60
"""How often the choice that was tried least is switched on, and candidates then."""
CAREFUL_FROM, LATELY = 12, 10
CAREFUL_RUNS, CAREFUL_KEEPS = (1.6, 6.0), (1.0, 3.0)
"""From trial `CAREFUL_FROM` on, the least probability of running and of keeping all promises are Φ(a + b * share lost
of the last `LATELY`): a crash teaches less than a promise that was just missed."""
REFUSED = 1e6
"""What puts a configuration that is not feasible enough behind all that are."""
UNSURE_RUNS = 0.15
"""Standard deviation that the edge between what runs and what fails has at least."""
CURIOSITY = 2.0
"""Factor on what is not known of a candidate's score: the plain expected improvement stays too near to what is best
already (figures: docs/design/sampler.md)."""
CAUTION = 0.5
"""Standard deviations by which a recommended configuration may be worse than thought."""
PREDICTED_SCALES = PriorScales(amplitude=0.15, effects=0.2, noise=0.03, constant=0.3, slope=0.3, reach=1.0)
"""Scores and violations are relative: 0.2 is a fifth. A simulator that is off by more than this is rare. A larger slope
or reach lets one prediction that proves far too good make promising what is predicted to be worst: two studies of 7B on
H200s spent minutes so on 9 sequences at a time."""
UNPREDICTED_SCALES = PriorScales(amplitude=0.3, effects=0.4, noise=0.03, constant=0.3)
RUNS_SCALES = PriorScales(amplitude=0.4, effects=0.2, noise=0.1, constant=0.1, slope=0.5)


@dataclass(frozen=True)
class SelectionSettings:
    """What does not change from choice to choice."""

    space: CandidateSpace
    belief: PriorCache
    weights: tuple[float, ...] | None
    predicted: int
    transfer: Transfer


class CandidateSelection:
    """Models fitted to a history, and what they think of configurations."""

    def __init__(
        self, setup: SelectionSettings, directions: Sequence[StudyDirection], history: History, rng: np.random.Generator
    ) -> None:
        """Fit the models; `history` holds at least one measured trial. To be used within `one_thread`."""
        self._space, self._belief, self._history, self._rng = setup.space, setup.belief, history, rng
        self._transfer = setup.transfer
        self._scales = scales_of(history.values, directions, setup.weights)
        self._weights = np.array([scale.weight for scale in self._scales])
        self._names = history.names()
        self._tried = history.taken
        self._encoder = Encoder(self._space.distributions)
        self._fit()
        self._best = self._best_kept()
        self._top = -math.inf
        self.outlook: float | None = None
        """The most that anything considered is expected to gain, as a share of the score, times the probability that it
        is feasible. What was too risky to be chosen counts, and what breaks a rule: it errs towards going on. None
        where nothing was feasible before, or the choice was made for another reason."""

    def _fit(self) -> None:
        history, owners = self._history, (self._encoder.owner, self._encoder.effect_owner)
        self._measured, failed = self._encoder.both(history.measured), self._encoder.both(history.failed)
        self._means = means = self._predicted(history.measured)
        scales = PREDICTED_SCALES if self._belief.exists else UNPREDICTED_SCALES
        self._kept = GaussianProcess(owners, *self._measured, self._observed(), means[:, :-1], scales)
        rows, effects = (np.vstack(pair) for pair in zip(self._measured, failed, strict=True))
        labels = np.concatenate([np.zeros(len(history.measured)), np.ones(len(history.failed))])
        chances = np.vstack([means[:, -1:], self._predicted(history.failed)[:, -1:]])
        self._runs = GaussianProcess(owners, rows, effects, labels[:, None], chances, RUNS_SCALES, steps=10)
        if history.pending:
            pending, means = self._encoder.both(history.pending), self._predicted(history.pending)
            self._kept.with_pending(*pending, means[:, :-1])
            self._runs.with_pending(*pending, means[:, -1:])

    def _observed(self) -> Matrix:
        """Return score and constraints of what was measured, shape (n, 1 + constraints)."""
        history = self._history
        gains = [[scale.gain(v) for scale, v in zip(self._scales, values, strict=True)] for values in history.values]
        scores = np.array(gains) @ self._weights
        violations = [[each.get(name, 0.0) for name in self._names] for each in history.constraints]
        return np.column_stack([scores, squeezed(violations).reshape(len(scores), len(self._names))])

    def _predicted(self, configs: Sequence[Params]) -> Matrix:
        """Return predicted score, constraints and chance of failing, shape (n, 2 + constraints)."""
        predictions = self._belief.rows(configs, self._scales, self._names)
        if self._transfer.teaches:
            predictions = self._taught(predictions, *self._encoder.both(configs))
        return self._weighed(predictions)

    def _taught(self, predictions: Matrix, rows: Matrix, effects: Matrix) -> Matrix:
        """Return predictions with what earlier studies teach, if there are any."""
        if not self._transfer.teaches:
            return predictions
        lessons = self._transfer.shift(rows, effects, self._encoder, self._scales, self._names)
        return np.asarray(predictions + lessons)

    def _weighed(self, predictions: Matrix) -> Matrix:
        """Return predictions with the objectives' gains weighed into one score."""
        count = len(self._scales)
        return np.column_stack([predictions[:, :count] @ self._weights, predictions[:, count:]])

    def best(self) -> Params:
        """Return what to measure next."""
        if self._history.known % SWITCH_EVERY == 0 and (switched := self._switched()) is not None:
            return switched
        leaders = self._leaders()
        drawn = [c for _ in range(DRAWN) if (c := self._space.draw(self._rng, checked=False)) is not None]
        drawn += [*self._neighbours(leaders, NEAR), *self._transfer.best(self._scales)]
        found = self._fresh(drawn) or drawn
        known, guessed = self._asked(), _pairs(self._merit(found), found)
        starts = [config for _, config in heapq.nlargest(CLIMBERS - 1, [*known, *guessed], key=_value)]
        climbed = self._fresh(
            local_search(self._space, self._encoder, self._merit_of, [*starts, leaders[0]], self._rng)
        )
        if climbed:
            guessed += _pairs(self._merit(climbed), climbed)
        return self._settled(known, guessed)

    def _asked(self) -> list[tuple[float, Params]]:
        """Return what was predicted and not tried, each with its merit."""
        considered = self._belief.considered
        if not considered:
            return []
        encoded = self._belief.encoded(self._encoder)
        means = self._weighed(self._taught(self._belief.known_rows(self._scales, self._names), *encoded))
        merit = self._merit_of(*encoded, means)
        return [pair for pair in _pairs(merit, considered) if frozenset(pair[1].items()) not in self._tried]

    def _settled(self, known: list[tuple[float, Params]], guessed: list[tuple[float, Params]]) -> Params:
        """Return the best that breaks no rule, of which the prediction is known where there are predictions.

        None is asked for here: what is guessed to be best is wanted for the next choice.
        """
        if self._best is not None:
            self.outlook = math.exp(self._top)
        promising = self._allowed(guessed, AHEAD if self._belief.exists else 1)
        self._belief.want(promising)
        return next(iter(self._allowed(known, 1) or promising), {})

    def _allowed(self, candidates: list[tuple[float, Params]], count: int) -> list[Params]:
        """Return the best candidates that break no rule, so many at most."""
        found: list[Params] = []
        for _, config in sorted(candidates, key=_value, reverse=True):
            if len(found) == count:
                break
            if config not in found and self._space.allows(config):
                found.append(config)
        return found

    def _switched(self) -> Params | None:
        """Return a good configuration with the choice that was tried least; None where none is feasible enough.

        A choice that opens parameters of its own has more to be tried in, and counts as tried the less for each.
        """
        leaders = self._leaders()[:3]
        counts = {
            (name, choice): sum(name in config and config[name] == choice for config in self._history.tried)
            for name, distribution in self._space.distributions.items()
            if isinstance(distribution, CategoricalDistribution) and any(name in leader for leader in leaders)
            for choice in distribution.choices
        }
        if not counts:
            return None
        opens = opened_parameters(self._history.tried)
        name, choice = min(counts, key=lambda key: (counts[key] / (1 + opens[key]), self._rng.random()))
        drawn = [self._space.draw(self._rng, {**leaders[i % len(leaders)], name: choice}) for i in range(SWITCHED)]
        found = self._fresh([config for config in drawn if config is not None and config.get(name) == choice])
        merit = self._merit(found) if found else np.zeros(0)
        return found[int(np.argmax(merit))] if found and merit.max() > -REFUSED / 2 else None

    def _neighbours(self, of: Sequence[Params], count: int) -> list[Params]:
        """Return neighbours of some configurations, among them such as break a rule."""
        found = (self._space.neighbour(self._rng, of[index % len(of)], checked=False) for index in range(count))
        return [config for config in found if config is not None]

    def _leaders(self) -> list[Params]:
        """Return the measured configurations that are thought best."""
        measured = self._history.measured
        merit = self._merit_of(*self._measured, self._means)
        return [measured[index] for index in np.argsort(-merit)[:LEADERS]]

    def _fresh(self, configs: Sequence[Params]) -> list[Params]:
        """Return those that were not tried."""
        return [config for config in configs if frozenset(config.items()) not in self._tried]

    def _merit(self, configs: Sequence[Params]) -> Vector:
        """Return ln of expected improvement times feasibility, what is predicted of them guessed."""
        return self._merit_of(*self._encoder.both(configs))

    def _merit_of(self, rows: Matrix, effects: Matrix, means: Matrix | None = None) -> Vector:
        """Return the merit of encoded configurations; without their predictions, these are guessed."""
        if means is None:
            guesses = self._belief.guesses(rows, self._encoder, self._scales, self._names)
            means = self._weighed(self._taught(guesses, rows, effects))
        expected, spread = self._kept.predict(rows, effects, means[:, :-1])
        runs, keeps = self._chances(rows, effects, means, expected, spread)
        feasible = runs + keeps
        merit: Vector = feasible
        if self._best is not None:
            gain, unknown = expected[:, 0] - self._best, np.maximum(spread[:, 0], 1e-4)
            self._top = max(self._top, float((feasible + log_expected_improvement(gain, unknown)).max()))
            merit = feasible + log_expected_improvement(gain, CURIOSITY * unknown)
        if self._history.known >= CAREFUL_FROM:
            lost = self._history.lost(LATELY)
            careful = runs >= log_ndtr(CAREFUL_RUNS[0] + CAREFUL_RUNS[1] * lost)
            careful &= keeps >= log_ndtr(CAREFUL_KEEPS[0] + CAREFUL_KEEPS[1] * lost)
            merit = np.where(careful, merit, feasible - REFUSED)
        return merit

    def _chances(
        self, rows: Matrix, effects: Matrix, means: Matrix, expected: Matrix, spread: Matrix
    ) -> tuple[Vector, Vector]:
        """Return ln of the probability of running, and of keeping all promises, of encoded configurations."""
        fails, unsure = self._runs.predict(rows, effects, means[:, -1:])
        runs: Vector = log_ndtr((0.5 - fails[:, 0]) / np.hypot(unsure[:, 0], UNSURE_RUNS))
        keeps: Vector = log_ndtr(-expected[:, 1:] / np.hypot(spread[:, 1:], self._kept.noise)).sum(axis=1)
        return runs, keeps

    def feasible(self, configs: Sequence[Params]) -> Vector:
        """Return the probability that each configuration runs and keeps its promises."""
        (rows, effects), means = self._encoder.both(configs), self._predicted(configs)
        runs, keeps = self._chances(rows, effects, means, *self._kept.predict(rows, effects, means[:, :-1]))
        return np.asarray(np.exp(runs + keeps))

    def _expected(self) -> tuple[Matrix, Matrix]:
        """Return mean and standard deviation of score and constraints of what was measured."""
        return self._kept.predict(*self._measured, self._means[:, :-1])

    def _best_kept(self) -> float | None:
        """Return the highest expected score of what kept its promises; None: nothing did."""
        kept = np.array([all(v <= 0 for v in each.values()) for each in self._history.constraints], dtype=bool)
        return float(np.max(self._expected()[0][kept, 0])) if kept.any() else None

    def ranking(self) -> list[int]:
        """Return the indices of the measured configurations that are likely to keep all promises, the best first.

        By the lower end of what is thought of their scores: the best of many noisy measurements looks better than it
        is, and one that its neighbours speak for less so.
        """
        expected, spread = self._expected()
        likely = np.all(expected[:, 1:] + CAUTION * spread[:, 1:] <= 0, axis=1)
        order = np.argsort(-(expected[:, 0] - CAUTION * spread[:, 0]), kind="stable")
        return [int(index) for index in order if likely[index]]


@cache
def _pools() -> ThreadpoolController:
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """Keep BLAS to one thread: matrices this small gain nothing from more, which wait for cores that servers need."""
    limited: AbstractContextManager[object] = _pools().limit(limits=1, user_api="blas")
    return limited


def _pairs(merit: Vector, configs: Sequence[Params]) -> list[tuple[float, Params]]:
    return [(float(value), config) for value, config in zip(merit, configs, strict=True)]


def _value(pair: tuple[float, Params]) -> float:
    return pair[0]
