"""What Optuna knows of the study: asking for configurations, telling what came of them, going on after a stop.

The sampler is `sampling.ResidualSampler`, or Optuna's multivariate TPE. TPE ignores FAIL trials and walks back into the
region that crashed, so a configuration that failed is told as PRUNED with a violated constraint and no values; only
infrastructure's failures, which say nothing about the configuration, are told as FAIL.
"""

from __future__ import annotations

import copy
import json
import logging
import sqlite3
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from search_spaces import ResolvedSpace
from storage.records import Config, Verdict
from tuner.sampler.convergence import converged
from tuner.sampler.flag_effects import FlagEffect
from tuner.sampler.prior.background import BackgroundPredictions
from tuner.sampler.prior.prior_cache import Prior
from tuner.sampler.residual import ResidualSampler
from tuner.sampler.surrogate.encoding import Params
from tuner.sampler.transfer import SourceHistory
from tuner.scoring.judge import FAILED, FAILED_VIOLATION
from tuner.scoring.objectives import Objective
from tuner.study.spec import RESIDUAL, TPE

STARTUP_TRIALS = 10
"""Random trials before the model of TPE is trusted."""

HISTORY = 140
"""Trials that the sampler is shown: its cost grows with them."""

BEST_KEPT = 60
"""Of those, how many are the best by score; the others are the latest."""

optuna.logging.set_verbosity(logging.ERROR)


@dataclass(frozen=True)
class Suggestion:
    """A configuration under Optuna's trial number."""

    number: int
    config: Config


class OptunaStudy:
    """The Optuna side of one study; used by one thread of one process at a time."""

    def __init__(
        self,
        storage_url: str,
        name: str,
        space: ResolvedSpace,
        objectives: tuple[Objective, ...],
        seed: int,
        sampler: str = TPE,
        prior: Prior | None = None,
        earlier: Sequence[SourceHistory] = (),
    ) -> None:
        """Open the study `name`, or create it; Optuna's tables live in the database of `storage_url`.

        Args:
            storage_url: of the database.
            name: of the study.
            space: where configurations come from.
            objectives: what is optimised, with its weights.
            seed: of the sampler.
            sampler: `residual` or `tpe`.
            prior: what is predicted of configurations; its predictions are prepared beside the trials.
            earlier: what earlier studies teach `residual`.
        """
        self._space = space
        self._objectives = objectives
        self._seed = seed
        self._residual = None if sampler != RESIDUAL else residual_sampler(space, objectives, prior, earlier)
        self._storage = optuna.storages.RDBStorage(storage_url, engine_kwargs=_engine_arguments(storage_url))
        self._directions = [StudyDirection[objective.direction.name] for objective in objectives]
        self._study = optuna.create_study(
            storage=self._storage, study_name=name, directions=self._directions, load_if_exists=True
        )
        self._ahead: BackgroundPredictions | None = None
        if self._residual is not None and prior is not None:
            known = shown(self._study.get_trials(deepcopy=False))
            self._ahead = BackgroundPredictions(self._residual, self._directions)
            self._ahead.begin([trial.params for trial in known if trial.params and trial.state is not TrialState.FAIL])

    def ask(self) -> Suggestion:
        """Ask the sampler for a configuration."""
        if self._ahead is not None:
            self._ahead.stop()
        history = self._study.get_trials(deepcopy=False)
        known = shown(history)
        numbers = {trial.number for trial in known}
        hidden = [each.params for each in history if each.state in _TEACHING and each.number not in numbers]
        model = optuna.create_study(directions=self._directions, sampler=self._sampler(len(history), hidden))
        model.add_trials([_uncopied(trial) for trial in known])
        trial = model.ask()
        config = self._space.suggest(trial)
        asked = self._begin(trial, config, getattr(model.sampler, "outlook", None))
        if self._ahead is not None:
            self._ahead.begin()
        return asked

    def converged(self, least: float) -> bool:
        """Return whether the search has converged, see `sampling.converged`; a sampler without an outlook never has."""
        if self._residual is None or least <= 0:
            return False
        trials = self._study.get_trials(deepcopy=False)
        return converged([trial.user_attrs.get("outlook") for trial in trials], least)

    def wait_prepared(self) -> None:
        """Wait until the predictions that the next choice needs are there."""
        if self._ahead is not None:
            self._ahead.wait()

    def ask_fixed(self, config: Config, hints: Config) -> Suggestion:
        """Take up a given configuration; Optuna sees its parameters and `hints` where the space has them.

        Args:
            config: what will be rendered; parameters that it leaves out stay the engine's own.
            hints: the engine's effective values of parameters that are left out, for the model only.
        """
        known = {**hints, **config}
        model = optuna.create_study(directions=self._directions)
        model.enqueue_trial(dict(known))
        trial = model.ask()
        self._space.suggest_fixed(trial, known)
        asked = self._begin(trial, config)
        if self._ahead is not None:
            self._ahead.begin([trial.params])
        return asked

    def ranking(self) -> list[int]:
        """Return the numbers of the trials that the sampler thinks best, best first; none if it has no opinion."""
        if self._residual is None:
            return []
        self.wait_prepared()
        trials = shown(self._study.get_trials(deepcopy=False))
        model = optuna.create_study(directions=self._directions)
        model.add_trials([_uncopied(trial) for trial in trials])
        return [trials[place].number for place in self._residual.ranking(model)]

    def flag_effects(self, number: int, defaults: int) -> list[FlagEffect]:
        """Return what each parameter of a measured trial earns, by the study's own trials: no prediction takes part.

        Args:
            number: the trial's.
            defaults: that of the trial of the defaults.
        """
        every = self._study.get_trials(deepcopy=False)
        trials = shown(every)
        lacking = {number, defaults} - {trial.number for trial in trials}
        trials += [trial for trial in every if trial.number in lacking]
        model = optuna.create_study(directions=self._directions)
        model.add_trials([_uncopied(trial) for trial in trials])
        places = {trial.number: place for place, trial in enumerate(trials)}
        sampler = residual_sampler(self._space, self._objectives, None)
        names = [objective.metric for objective in self._objectives]
        return sampler.flag_effects(model, places[number], places[defaults], names)

    def _begin(self, trial: Trial, config: Config, outlook: float | None = None) -> Suggestion:
        """Write the trial down as running, all of it in one transaction."""
        known = {} if outlook is None else {"outlook": outlook}
        begun = optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={"config": json.dumps(dict(config), sort_keys=True)} | known,
        )
        trial_id = self._storage.create_new_trial(self._study._study_id, template_trial=begun)
        return Suggestion(self._storage.get_trial_number_from_id(trial_id), config)

    def _sampler(self, number: int, hidden: Sequence[Params]) -> optuna.samplers.BaseSampler:
        """Return a sampler for the next trial, seeded by the study's seed and the trial's number.

        A study that was stopped and goes on so draws what it would have drawn, not its first draws again.
        """
        seed = (self._seed * 1_000_003 + number) % 2**32
        if self._residual is not None:
            return self._residual.with_seed(seed, hidden)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(
                n_startup_trials=STARTUP_TRIALS,
                multivariate=True,
                group=True,
                constant_liar=True,
                seed=seed,
            )

    def tell(self, number: int, verdict: Verdict | None) -> None:
        """Teach the outcome of a trial: values and constraints, a violated constraint, or nothing (None)."""
        trial = self._trial(number)
        if verdict is None:
            self._study.tell(trial, state=TrialState.FAIL)
            return
        for name, value in verdict.constraints.items():
            trial.set_constraint(name, value)
        if verdict.score is not None:
            trial.set_user_attr("score", verdict.score)
        values = [verdict.values.get(objective.metric) for objective in self._objectives]
        measured = [value for value in values if value is not None]
        if len(measured) == len(values):
            trial.set_constraint(FAILED, 0.0)
            self._study.tell(trial, measured)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)

    def rule_out(self, number: int, reason: str) -> None:
        """Teach that a configuration breaks a rule; nothing was launched."""
        trial = self._trial(number)
        trial.set_user_attr("ruled_out", reason)
        trial.set_constraint(FAILED, FAILED_VIOLATION)
        self._study.tell(trial, state=TrialState.PRUNED)

    def drop(self, number: int, reason: str) -> None:
        """Give a trial up without teaching anything."""
        trial = self._trial(number)
        trial.set_user_attr("dropped", reason)
        self._study.tell(trial, state=TrialState.FAIL)

    def running(self) -> list[int]:
        """Return the numbers of trials that were asked for and never told."""
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [trial.number for trial in trials]

    def _trial(self, number: int) -> Trial:
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
        return Trial(self._study, trial_id)


def residual_sampler(
    space: ResolvedSpace, objectives: Sequence[Objective], prior: Prior | None, earlier: Sequence[SourceHistory] = ()
) -> ResidualSampler:
    """Return this project's sampler for a space, never proposing what breaks a rule."""
    return ResidualSampler(
        space.suggest,
        prior=prior,
        allowed=lambda params: not space.violations(params),
        weights=[objective.weight for objective in objectives],
        failed=FAILED,
        earlier=earlier,
    )


def shown(history: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that the sampler learns from: all of a short history, of a long one the best and the latest.

    The first that was measured stays: scores are relative to it.
    """
    dropped = [trial for trial in history if trial.state is TrialState.FAIL]
    useful = [trial for trial in history if trial.state in _TEACHING]
    if len(useful) <= HISTORY:
        return [*useful, *dropped]
    ranked = sorted(useful, key=lambda trial: trial.user_attrs.get("score") or 0.0, reverse=True)
    first = next((trial for trial in useful if trial.state is TrialState.COMPLETE), useful[0])
    kept = {first.number, *(trial.number for trial in ranked[:BEST_KEPT])}
    for trial in reversed(useful):
        if len(kept) == HISTORY:
            break
        kept.add(trial.number)
    return [*(trial for trial in useful if trial.number in kept), *dropped]


class _Uncopied(FrozenTrial):
    """A trial that a study in memory takes as it is: copying a history in depth costs a third of an ask."""

    def __deepcopy__(self, memo: object) -> FrozenTrial:
        return copy.copy(self)


def _uncopied(trial: FrozenTrial) -> FrozenTrial:
    """Return the trial as an `_Uncopied` that shares its values with it."""
    shared = copy.copy(trial)
    shared.__class__ = _Uncopied
    return shared


_TEACHING = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)


def _engine_arguments(url: str) -> dict[str, Any]:
    """Return what SQLAlchemy needs for Optuna's own connections.

    SQLite writes ahead and syncs at checkpoints: a killed process loses nothing. A power cut may lose the last trials
    of Optuna's copy; the tuner's own tables, synced at every commit, then still have them.
    """
    if not url.startswith("sqlite:///"):
        return {}

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    return {"creator": connect}
