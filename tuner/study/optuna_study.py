"""One study in Optuna: suggest configurations, store outcomes, resume after a stop.

The sampler is `tuner.sampler.ResidualSampler` or Optuna's multivariate TPE. TPE ignores FAIL trials and proposes
configurations that failed again. A configuration that failed is therefore stored as PRUNED with a violated constraint
and no values. Infrastructure failures do not depend on the configuration and are stored as FAIL. A trial that was cut
short is PRUNED, too, with the bounds that are known.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from records.trials import Config, Failure, Verdict
from search_spaces import ResolvedSpace
from storage.store import Store
from tuner.sampler.encoding import Matrix, Vector
from tuner.sampler.flag_effects import Elimination, FlagEffect
from tuner.sampler.history import GAIN_AT_MOST
from tuner.sampler.prior import Prior
from tuner.sampler.residual import INITIAL_PREDICTIONS, ResidualSampler, SelectedTrials
from tuner.sampler.transfer import SourceHistory
from tuner.scoring.goals import FAILED, FAILED_VIOLATION, Objective
from tuner.settings.study import RESIDUAL, TPE
from tuner.study.optuna_storage import DROPPED, RULED_OUT, OptunaStorage, attributes_of

SHOWN_TRIALS = 140
"""Trials that the sampler uses; the cost of a suggestion grows with them."""
SHOWN_BEST = 60
"""Of those, how many are the best by score; the others are the latest."""
_RELEVANT_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
"""States of trials that a sampler models."""


def shown(history: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that the sampler uses: all of a short history, of a long one the best and the latest.

    The first measured trial is always among them, because scores are relative to it.
    """
    dropped = [trial for trial in history if trial.state is TrialState.FAIL]
    relevant = [trial for trial in history if trial.state in _RELEVANT_STATES]
    if len(relevant) <= SHOWN_TRIALS:
        return [*relevant, *dropped]
    ranked = sorted(relevant, key=lambda trial: trial.user_attrs.get("score") or 0.0, reverse=True)
    first = next((trial for trial in relevant if trial.state is TrialState.COMPLETE), relevant[0])
    numbers = {first.number, *(trial.number for trial in ranked[:SHOWN_BEST])}
    for trial in reversed(relevant):
        if len(numbers) == SHOWN_TRIALS:
            break
        numbers.add(trial.number)
    return [*(trial for trial in relevant if trial.number in numbers), *dropped]


class SharedTrial(FrozenTrial):
    """A trial whose deep copies share its values.

    Optuna's storage in memory makes a deep copy of each trial that is added, which takes a fifth of an `ask` with TPE.
    """

    @classmethod
    def of(cls, trial: FrozenTrial) -> SharedTrial:
        """Return a trial that shares the values of another one."""
        shared = copy.copy(trial)
        shared.__class__ = cls
        assert isinstance(shared, cls)
        return shared

    def __deepcopy__(self, memo: object) -> SharedTrial:
        return copy.copy(self)


_TPE_STARTUP_TRIALS = 10
"""Random trials before TPE's model is used."""

optuna.logging.set_verbosity(logging.ERROR)


@dataclass(frozen=True)
class RunningTrial:
    """A configuration that Optuna stores as a running trial under this number."""

    number: int
    config: Config


class OptunaStudy:
    """The Optuna study of one tuner study; used by one thread of one process at a time."""

    def __init__(
        self,
        storage_url: str,
        name: str,
        space: ResolvedSpace,
        objectives: tuple[Objective, ...],
        seed: int,
        sampler: str = TPE,
        prior: Prior | None = None,
        sources: Sequence[SourceHistory] = (),
        store: Store | None = None,
        prior_spread: float = 1.0,
        initial_predictions: int = INITIAL_PREDICTIONS,
    ) -> None:
        """Open the study, or create it; `residual` uses the prior, in a background thread, and the sources."""
        self._space = space
        self._objectives = objectives
        self._seed = seed
        self._residual: ResidualSampler | None = None
        self._sources, self._is_residual = sources, sampler == RESIDUAL
        self._initial_predictions = initial_predictions
        self._directions = [StudyDirection[objective.direction.name] for objective in objectives]
        self._storage = OptunaStorage(storage_url, name, self._directions, store)
        self._study = self._storage.study
        self._name_objectives()
        self.use_prior(prior, prior_spread)

    def use_prior(self, prior: Prior | None, spread: float = 1.0) -> None:
        """Begin with other predictions, as a process that resumes the study with them; TPE uses none."""
        if not self._is_residual:
            return
        if self._residual is not None:
            self._residual.abandon_predictions()
        settings = prior, self._sources, spread, self._initial_predictions
        self._residual = residual_sampler(self._space, self._objectives, *settings)
        earlier = [each for each in shown(self._storage.trials()) if each.params and each.state is not TrialState.FAIL]
        self._residual.start_background_predictions(self._directions, [each.params for each in earlier])

    def close(self) -> None:
        """Close the connections to the database."""
        self._storage.close()

    def _name_objectives(self) -> None:
        """Store the metrics as Optuna's names of the objectives, which dashboards show."""
        names = [objective.metric for objective in self._objectives]

        def store_names(_: bool) -> None:
            if self._study.metric_names != names:
                with _no_experimental_warnings():
                    self._study.set_metric_names(names)

        self._storage.run(store_names)

    def ask(self) -> RunningTrial:
        """Return the sampler's next configuration as a running trial."""
        history = self._storage.trials()
        trials = shown(history)
        numbers = {trial.number for trial in trials}
        hidden = [each.params for each in history if each.state in _RELEVANT_STATES and each.number not in numbers]
        # Seeded by the number of trials, so that a resumed study continues with the draws of an uninterrupted one.
        seed = (self._seed * 1_000_003 + len(history)) % 2**32
        if self._residual is None:
            return self._ask_tpe(len(history), trials, seed)
        return self._ask_residual(len(history), self._residual.with_seed(seed, hidden), trials, seed)

    def _ask_residual(
        self, before: int, sampler: ResidualSampler, trials: Sequence[FrozenTrial], seed: int
    ) -> RunningTrial:
        suggestion = sampler.suggest(SelectedTrials(trials, self._directions))
        model = optuna.create_study(directions=self._directions, sampler=RandomSampler(seed=seed))
        model.enqueue_trial(dict(suggestion.params))
        trial = model.ask()
        begun = self._begin(before, trial, self._space.suggest(trial))
        sampler.start_background_predictions(self._directions)
        return begun

    def _ask_tpe(self, before: int, trials: Sequence[FrozenTrial], seed: int) -> RunningTrial:
        model = optuna.create_study(directions=self._directions, sampler=tpe_sampler(seed))
        model.add_trials([SharedTrial.of(trial) for trial in trials])
        trial = model.ask()
        return self._begin(before, trial, self._space.suggest(trial))

    def wait_for_predictions(self) -> None:
        """Wait until the background thread has computed the predictions for the next suggestion."""
        if self._residual is not None:
            self._residual.wait_for_predictions()

    def ask_fixed(self, config: Config, hints: Config) -> RunningTrial:
        """Return a given configuration as a running trial. Optuna stores its parameters and `hints` of the space.

        Args:
            config: the configuration to render; the engine's defaults apply to parameters that it leaves out.
            hints: the engine's values of parameters that are left out, for the sampler only.
        """
        known = {**hints, **config}
        model = optuna.create_study(directions=self._directions)
        model.enqueue_trial(dict(known))
        trial = model.ask()
        self._space.suggest_fixed(trial, known)
        begun = self._begin(len(self._storage.trials()), trial, config)
        if self._residual is not None:
            self._residual.start_background_predictions(self._directions, [trial.params])
        return begun

    def ranking(self, without: Collection[int] = ()) -> list[int]:
        """Return the numbers of the trials that the sampler ranks best, best first; none with TPE."""
        if self._residual is None:
            return []
        self.wait_for_predictions()
        return self._residual.ranking(SelectedTrials(self._shown((), without), self._directions))

    def _shown(self, needed: Collection[int], without: Collection[int] = ()) -> list[FrozenTrial]:
        """Return the trials that the sampler uses and those that are needed, less those to leave out."""
        every = [trial for trial in self._storage.trials() if trial.number not in without]
        trials = shown(every)
        missing = {*needed} - {trial.number for trial in trials}
        return [*trials, *(trial for trial in every if trial.number in missing)]

    def flag_effects(self, number: int, defaults: int) -> list[FlagEffect]:
        """Return the flag effects of a measured trial, from the study's own trials without predictions."""
        sampler = residual_sampler(self._space, self._objectives, None)
        names = [objective.metric for objective in self._objectives]
        trials = SelectedTrials(self._shown((number, defaults)), self._directions)
        return sampler.flag_effects(trials, number, defaults, names)

    def eliminate(self, number: int, defaults: int, without: Collection[int]) -> Elimination:
        """Return the order in which a trial's parameters can be reset to those of the trial `defaults`.

        Trials with the numbers `without` have no influence.
        """
        self.wait_for_predictions()
        sampler = self._residual or residual_sampler(self._space, self._objectives, None)
        trials = SelectedTrials(self._shown((number, defaults), without), self._directions)
        known = self._space.known_defaults()
        names = [each.name for each in self._space.parameters if each.name in known and each.contains(known[each.name])]
        return sampler.eliminate(trials, number, defaults, {name: known[name] for name in names})

    def joint_scores(self, configs: Sequence[Config], without: Collection[int] = ()) -> tuple[Vector, Matrix, float]:
        """Return the sampler's posterior of the scores of configurations, see `ResidualSampler.joint_scores`.

        Trials with the numbers `without` have no influence.
        """
        self.wait_for_predictions()
        sampler = self._residual or residual_sampler(self._space, self._objectives, None)
        known = [{**self._space.defaults_beside(config), **config} for config in configs]
        params = [{each.name: row[each.name] for each in self._space.parameters if each.name in row} for row in known]
        return sampler.joint_scores(SelectedTrials(self._shown((), without), self._directions), params)

    def _begin(self, before: int, trial: Trial, config: Config) -> RunningTrial:
        """Store the trial, which has `before` trials before it, as running."""
        attributes: dict[str, Any] = {"config": json.dumps(dict(config), sort_keys=True)}
        begun = create_trial(
            state=TrialState.RUNNING, params=trial.params, distributions=trial.distributions, user_attrs=attributes
        )
        return RunningTrial(self._storage.add(begun, before), config)

    def tell(
        self,
        number: int,
        verdict: Verdict | None,
        failure: Failure | None = None,
        gain_at_most: float | None = None,
    ) -> None:
        """Store the outcome of a trial: values and constraints, or a violated constraint; None: FAIL.

        A verdict without values or failure is that of a trial that was cut short, whose gain over the reference is at
        most `gain_at_most` (None: unknown).
        """
        attributes: dict[str, Any] = attributes_of(verdict, failure)
        if verdict is None:
            self._storage.end(number, create_trial(state=TrialState.FAIL, user_attrs=attributes))
            return
        constraints = dict(verdict.constraints)
        values = [verdict.values.get(objective.metric) for objective in self._objectives]
        measured = [value for value in values if value is not None]
        complete = len(measured) == len(values)
        if complete or FAILED not in constraints:
            constraints[FAILED] = 0.0
        if not complete and FAILED not in verdict.constraints:
            attributes[GAIN_AT_MOST] = self._over_first(gain_at_most)
        state = TrialState.COMPLETE if complete else TrialState.PRUNED
        ended = create_trial(
            state=state, values=measured if complete else None, user_attrs=attributes, constraints=constraints
        )
        self._storage.end(number, ended)

    def _over_first(self, gain: float | None) -> float | None:
        """Return a gain over the reference as one over the first measured trial; None if that is not known."""
        first = next((trial for trial in self._storage.trials() if trial.state is TrialState.COMPLETE), None)
        score = None if first is None else first.user_attrs.get("score")
        return gain - math.log(score) if gain is not None and score else None

    def rule_out(self, number: int, reason: str) -> None:
        """Store a trial as failed by its configuration, which breaks a rule; nothing was launched."""
        attributes, constraints = {RULED_OUT: reason}, {FAILED: FAILED_VIOLATION}
        self._storage.end(number, create_trial(state=TrialState.PRUNED, user_attrs=attributes, constraints=constraints))

    def drop(self, number: int, reason: str) -> None:
        """Store a trial as FAIL, which has no influence on the sampler."""
        self._storage.end(number, create_trial(state=TrialState.FAIL, user_attrs={DROPPED: reason}))

    def running(self) -> list[int]:
        """Return the numbers of running trials."""
        return [trial.number for trial in self._storage.trials() if trial.state is TrialState.RUNNING]


def residual_sampler(
    space: ResolvedSpace,
    objectives: Sequence[Objective],
    prior: Prior | None,
    sources: Sequence[SourceHistory] = (),
    prior_spread: float = 1.0,
    initial_predictions: int = INITIAL_PREDICTIONS,
) -> ResidualSampler:
    """Return a `ResidualSampler` for a search space; it proposes no configuration that breaks a rule."""
    return ResidualSampler(
        space.suggest,
        prior=prior,
        prior_spread=prior_spread,
        initial_predictions=initial_predictions,
        is_allowed=lambda params: not space.violations(params),
        weights=[objective.weight for objective in objectives],
        failure_constraint=FAILED,
        sources=sources,
    )


def tpe_sampler(seed: int) -> BaseSampler:
    """Return Optuna's multivariate TPE, which counts running trials as bad ones."""
    with _no_experimental_warnings():
        return TPESampler(
            n_startup_trials=_TPE_STARTUP_TRIALS, multivariate=True, group=True, constant_liar=True, seed=seed
        )


def _no_experimental_warnings() -> warnings.catch_warnings[None]:
    """Return a context without Optuna's warnings of experimental features."""
    return warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning)
