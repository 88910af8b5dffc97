"""Select the next configuration: generate candidates, evaluate the acquisition function, take the best.

Candidates are random configurations, neighbours of the best trials, the best of the source studies, all considered
predictions, and the results of local searches from the best of these. Every few trials, the least tried choice of a
categorical parameter is tried in the best configurations instead: parameters interact, and a choice that was bad in one
configuration may be good in another.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import CategoricalDistribution

from tuner.sampler.acquisition.acquisition_function import BELOW_THRESHOLD, FeasibleImprovement
from tuner.sampler.acquisition.candidates import CandidateSpace, count_conditional_parameters
from tuner.sampler.acquisition.local_search import STARTS, local_search
from tuner.sampler.surrogate.encoding import Params, Vector
from tuner.sampler.surrogate.model import Surrogate, SurrogateSettings

RANDOM_CANDIDATES, NEIGHBOURS, BEST_TRIALS = 40, 40, 6
"""Numbers of random candidates, of neighbours, and of the best trials whose neighbours these are."""
PREDICTED_NEXT = 10
"""Number of the best candidates without a prediction that are predicted for the next suggestion."""
RARE_CHOICE_EVERY, RARE_CHOICE_CANDIDATES, RARE_CHOICE_LEADERS = 5, 60, 3
"""Finished trials between two tries of the least tried choice, its candidates, and the leaders that they change."""


@dataclass(frozen=True)
class Suggestion:
    """A configuration to measure next.

    Args:
        params: the configuration; empty if there is no candidate.
        max_expected_improvement: of all candidates, as a share of the score and times the probability of feasibility;
            see `FeasibleImprovement`. None where the suggestion had another reason, or no trial is feasible.
        predict_next: the best candidates without a prediction; the next suggestion considers their predictions.
    """

    params: Params
    max_expected_improvement: float | None = None
    predict_next: Sequence[Params] = ()


class CandidateSelection:
    """One selection by a fitted surrogate. To be used within `single_blas_thread`.

    Args:
        space: the space that candidates are drawn from.
        settings: prior, source studies and weights of the surrogate.
        surrogate: fitted to the study's trials.
        rng: of all draws.
    """

    def __init__(
        self, space: CandidateSpace, settings: SurrogateSettings, surrogate: Surrogate, rng: np.random.Generator
    ) -> None:
        self._space, self._surrogate, self._rng = space, surrogate, rng
        self._prior, self._transfer = settings.prior, settings.transfer
        self._history = surrogate.history
        self._excluded = self._history.excluded
        self._acquisition = FeasibleImprovement(surrogate)

    def suggest(self) -> Suggestion:
        """Return the configuration to measure next."""
        if self._history.n_finished % RARE_CHOICE_EVERY == 0 and (rare := self._with_rare_choice()) is not None:
            return Suggestion(rare)
        leaders = self._leaders()
        draws = (self._space.draw(self._rng, checked=False) for _ in range(RANDOM_CANDIDATES))
        candidates = [config for config in draws if config is not None]
        candidates += [*self._neighbours(leaders), *self._transfer.best(self._surrogate.scales)]
        candidates = self._untried(candidates) or candidates
        predicted, unpredicted = self._predicted(), _pairs(self._acquisition.of(candidates), candidates)
        starts = [config for _, config in heapq.nlargest(STARTS - 1, [*predicted, *unpredicted], key=_value)]
        encoder = self._surrogate.encoder
        reached = self._untried(local_search(self._space, encoder, self._acquisition, [*starts, leaders[0]], self._rng))
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
        return Suggestion(best, self._acquisition.max_expected_improvement, tuple(best_unpredicted))

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

        The count of a choice is divided by 1 + the number of parameters that exist only beside it, because these have
        to be tried too.
        """
        leaders = self._leaders()[:RARE_CHOICE_LEADERS]
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
        return candidates[int(np.argmax(values))] if candidates and values.max() > -BELOW_THRESHOLD / 2 else None

    def _neighbours(self, of: Sequence[Params]) -> list[Params]:
        """Return neighbours of some configurations; some may break a rule."""
        draws = (self._space.neighbour(self._rng, of[index % len(of)], checked=False) for index in range(NEIGHBOURS))
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
