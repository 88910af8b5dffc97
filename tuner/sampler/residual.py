"""The sampler: what to measure next, from what was measured, what failed, and what physics predicts.

`ResidualSampler` is an Optuna sampler. Without predictions its first trials fill the space; from then on, or at once
where predictions exist, each trial is the choice of `choice.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from tuner.sampler.acquisition.candidates import CandidateSpace, Define
from tuner.sampler.acquisition.selection import CandidateSelection, SelectionSettings, one_thread
from tuner.sampler.flag_effects import FlagEffect, ScaledObjective, flag_effects, reset_to_default
from tuner.sampler.prior.prior_cache import Prior, PriorCache, explore, load_forest, ranked
from tuner.sampler.surrogate.encoding import Encoder, Params, Vector
from tuner.sampler.surrogate.history import History, read, scales_of
from tuner.sampler.transfer import SourceHistory, Transfer

STARTUP = 8
"""Trials that fill the space where nothing is predicted."""
FILLING = 12
"""Random configurations of which the one farthest from all others is taken to fill the space."""
FRONT_EVERY = 6
"""How often several objectives are weighed at random, for the sake of the front (Knowles, "ParEGO", IEEE TEC 2006)."""
PREDICTED = 200
"""Configurations whose predictions are asked for before the first choice."""
BEST_ONE_IN = 10
"""Of those, workers that start together get of the best tenth such as differ."""


class ResidualSampler(BaseSampler):
    """Bayesian optimisation with a predicted mean, constraints and failures; usable in any Optuna study.

    A trial that failed by its configuration is to be told as PRUNED with a positive constraint; one told as FAIL says
    nothing. What is proposed depends on the seed, the trial's number and the other trials; with a prior, also on what
    was asked of it before, which a new process has forgotten.
    """

    def __init__(
        self,
        define: Define | None = None,
        *,
        prior: Prior | None = None,
        predicted: int = PREDICTED,
        allowed: Callable[[Params], bool] | None = None,
        weights: Sequence[float] | None = None,
        startup: int = STARTUP,
        failed: str = "failed",
        seed: int = 0,
        earlier: Sequence[SourceHistory] = (),
    ) -> None:
        """Make a sampler.

        Args:
            define: the search space, define-by-run; without it, the parameters that the study's trials have shown.
            prior: predicts a configuration, or says None where it cannot.
            predicted: how many predictions to ask for before the first choice.
            allowed: says whether a configuration may be proposed.
            weights: of the objectives in the score; equal by default.
            startup: trials that fill the space if nothing is predicted.
            failed: name of the constraint that says that a configuration failed.
            seed: of all draws.
            earlier: what earlier studies measured, by the objectives and constraints of this one; see `transfer`.
        """
        given = tuple(weights) if weights else None
        self._setup = SelectionSettings(
            CandidateSpace(define, allowed), PriorCache(prior), given, predicted, Transfer(earlier, prior is not None)
        )
        self._startup, self._failed = startup, failed
        self._seed = seed
        self._prepared = False
        self._hidden: Sequence[Params] = ()
        self._last: tuple[int, History] | None = None
        self.outlook: float | None = None
        """What was expected when the last choice was made, see `CandidateSelection.outlook`."""
        self._independent = RandomSampler(seed=seed)

    def want(self, configs: Iterable[Params]) -> None:
        """Have `prepare` ask for the predictions of configurations, too: of such as this sampler did not choose."""
        self._setup.belief.want(configs)

    def prepare(self, directions: Sequence[StudyDirection], stopped: Callable[[], bool] = lambda: False) -> None:
        """Ask for the predictions that the next choice wants, once the space is known; takes as long as they do.

        To be called beside a running trial. A choice that nothing was prepared for begins with it.

        Args:
            directions: of the objectives.
            stopped: says whether to leave the rest to the choice; those before the first one are asked for in any case.
        """
        setup = self._setup
        if not setup.belief.exists or not setup.space.known:
            return
        if not self._prepared:
            explore(setup.belief, setup.space, directions, setup.weights, setup.predicted)
            self._prepared = True
            setup.transfer.prepare()
            load_forest()
        setup.belief.catch_up(stopped)

    def with_seed(self, seed: int, hidden: Sequence[Params] = ()) -> ResidualSampler:
        """Return the same sampler, its memory of predictions shared, with other draws.

        Args:
            seed: of the draws.
            hidden: what was tried in trials that the study does not show: it is not proposed again.
        """
        other = copy.copy(self)
        other._seed, other._independent, other._hidden = seed, RandomSampler(seed=seed), hidden
        return other

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return every parameter that is known; those that turn out not to count are not asked for."""
        self._last = trial.number, self._read(study, trial.number)
        self.prepare(study.directions)
        if not self._setup.space.distributions:
            self._setup.space.draw(np.random.default_rng(self._seed))
        return dict(self._setup.space.distributions)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a random value: for a parameter that no trial has shown."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the configuration to measure next."""
        if not search_space:
            return {}
        rng = np.random.default_rng([self._seed, trial.number])
        last = self._last
        history = last[1] if last is not None and last[0] == trial.number else self._read(study, trial.number)
        self.outlook = None
        taught, predicted = self._setup.transfer.exists, self._setup.belief.exists
        if not history.measured and (taught or predicted):
            chosen = self._handed_down(study, history) or self._foreseen(study, history)
        elif not history.measured or (not taught and not predicted and history.known < self._startup):
            chosen = self._fill(history, rng)
        else:
            setup = self._weighing(study.directions, history, rng)
            with one_thread():
                choice = CandidateSelection(setup, study.directions, history, rng)
                chosen = choice.best()
            self.outlook = choice.outlook if setup is self._setup else None
        self.want([chosen] if chosen else [])
        return {name: value for name, value in chosen.items() if name in search_space}

    def _weighing(
        self, directions: Sequence[StudyDirection], history: History, rng: np.random.Generator
    ) -> SelectionSettings:
        """Return the setup, every few trials with other weights."""
        if len(directions) < 2 or history.known % FRONT_EVERY != FRONT_EVERY - 1:
            return self._setup
        return replace(self._setup, weights=tuple(rng.dirichlet(np.ones(len(directions)))))

    def recommend(self, study: Study) -> FrozenTrial | None:
        """Return the measured trial that is thought best; None where none is likely to keep its promises."""
        numbers = self.ranking(study)
        return study.get_trials(deepcopy=False)[numbers[0]] if numbers else None

    def ranking(self, study: Study) -> list[int]:
        """Return the numbers of the measured trials that are likely to keep their promises, the best first.

        The best of many noisy measurements looks better than it is: this goes by what the model expects of each.
        """
        history = self._read(study, None)
        if not history.measured:
            return []
        with one_thread():
            choice = CandidateSelection(self._setup, study.directions, history, np.random.default_rng(self._seed))
            return [history.numbers[index] for index in choice.ranking()]

    def flag_effects(self, study: Study, number: int, defaults: int, metrics: Sequence[str]) -> list[FlagEffect]:
        """Return what each parameter of a measured trial earns, by what was measured; see `FlagEffect`.

        Args:
            study: whose trials are the model's data.
            number: the trial.
            defaults: the trial of the defaults.
            metrics: the objectives' names.
        """
        history = self._read(study, None)
        if not history.measured:
            return []
        setup, trials = self._setup, {trial.number: trial.params for trial in study.get_trials(deepcopy=False)}
        without = reset_to_default(setup.space, trials[number], trials[defaults])
        if not without:
            return []
        scales = scales_of(history.values, study.directions, setup.weights)
        aims = [ScaledObjective(metric, scale) for metric, scale in zip(metrics, scales, strict=True)]
        with one_thread():
            choice = CandidateSelection(setup, study.directions, history, np.random.default_rng(self._seed))
            feasible = choice.feasible(list(without.values()))
            return flag_effects(Encoder(setup.space.distributions), history, aims, trials[number], without, feasible)

    def _read(self, study: Study, number: int | None) -> History:
        """Return what all trials but one teach."""
        others = [other for other in study.get_trials(deepcopy=False) if other.number != number]
        history = read(others, self._failed)
        history.hidden += self._hidden
        self._setup.space.learn(history.distributions, [*history.measured, *history.failed])
        return history

    def _handed_down(self, study: Study, history: History) -> Params:
        """Return the best of the earlier studies that was not tried and breaks no rule; {} where there is none."""
        tried = history.taken
        units = scales_of([(1.0,) * len(study.directions)], study.directions, self._setup.weights)
        fresh = (each for each in self._setup.transfer.best(units) if frozenset(each.items()) not in tried)
        return next(filter(self._setup.space.allows, fresh), {})

    def _foreseen(self, study: Study, history: History) -> Params:
        """Return what is predicted to be best; beside such a one, what of the best differs most from it."""
        belief = self._setup.belief
        tried = history.taken
        order = ranked(belief, study.directions, self._setup.weights)
        fresh = [config for config in order if frozenset(config.items()) not in tried]
        best = [config for config in order[: len(order) // BEST_ONE_IN] if belief.keeps(config)]
        others, left = [each for each in best if each not in fresh], [each for each in best if each in fresh]
        return self._farthest(left, others) if left and others else next(iter(fresh), {})

    def _fill(self, history: History, rng: np.random.Generator) -> Params:
        """Return the one of some random configurations that is farthest from all that were tried.

        One that is nearer to what failed or broke a promise than to what did not is not taken, if there is another.
        """
        drawn = [found for _ in range(FILLING) if (found := self._setup.space.draw(rng)) is not None]
        if not drawn or not history.tried:
            return drawn[0] if drawn else {}
        good, bad = history.good, history.bad
        if good and bad:
            nearer = self._distances(drawn, good) < self._distances(drawn, bad)
            drawn = [config for config, kept in zip(drawn, nearer, strict=True) if kept] or drawn
        return self._farthest(drawn, history.tried)

    def _distances(self, configs: Sequence[Params], others: Sequence[Params]) -> Vector:
        """Return of each configuration the squared distance to the nearest of the others."""
        encoder = Encoder(self._setup.space.distributions)
        rows, theirs = encoder.rows(configs), encoder.rows(others)
        found: Vector = ((rows[:, None, :] - theirs[None, :, :]) ** 2).sum(axis=2).min(axis=1)
        return found

    def _farthest(self, configs: Sequence[Params], others: Sequence[Params]) -> Params:
        """Return the configuration whose nearest of the others is farthest away."""
        return configs[int(np.argmax(self._distances(configs, others)))]
