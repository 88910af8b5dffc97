"""A sampler with a model: an Optuna study in memory, which has the trials of an optimization as the store has them.

A suggestion depends on the seed and on the trials, so processes with the same trials propose the same configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from storage.service.optimizations.records import ClientTrial, ClientTrialState, Draw
from tuner.sampler.acquisition.candidates import CandidateTrial
from tuner.scoring.goals import FAILED, FAILED_VIOLATION
from tuner.scoring.score import score
from tuner.service.optimizer.draws import random_config
from tuner.service.optimizer.settings import OptimizerSettings
from tuner.study.optuna_storage import TrialsInMemory
from tuner.study.optuna_study import OptunaStudy

MOST_TRIES = 20
"""Proposals that may break a rule of the space before a random configuration takes their place."""


class Model:
    """Proposes configurations; used by one thread at a time."""

    def __init__(self, settings: OptimizerSettings) -> None:
        self._settings = settings
        self._trials = TrialsInMemory([StudyDirection[each.direction.name] for each in settings.objectives])
        space, objectives = settings.space, settings.objectives
        self._study = OptunaStudy("", "", space, objectives, settings.seed, settings.sampler, trials=self._trials)
        self._reference: tuple[int, Mapping[str, float]] | None = None
        self.suggested = 0
        """How many trials it has."""
        self.ended = 0
        """How many of them have ended."""

    def update(self, changed: Sequence[ClientTrial]) -> None:
        """Add or replace trials.

        Args:
            changed: those that `changed_trials` of the store returns for `suggested` and `ended`.
        """
        for trial in changed:
            if trial.metrics is not None and (self._reference is None or trial.number < self._reference[0]):
                self._reference = trial.number, trial.metrics
        for trial in changed:
            self._trials.put(trial.number, self._frozen(trial))
            self.ended = max(self.ended, trial.ended or 0)
        self.suggested = len(self._trials.trials())

    def propose(self, count: int) -> list[Draw]:
        """Return configurations for the next trials. Each one takes those before it as running trials."""
        draws = []
        for offset in range(count):
            draws.append(self._next(self.suggested + offset))
        self._trials.keep(self.suggested)
        return draws

    def _next(self, number: int) -> Draw:
        """Return a configuration that breaks no rule, and add it as a running trial."""
        space = self._settings.space
        for _ in range(MOST_TRIES):
            asked = self._study.ask()
            last = self._trials.trials()[-1]
            if not space.violations(asked.config):
                self._trials.keep(number)
                self._trials.add(last, number)
                sampled = dict(last.params)
                return Draw(asked.config, None if sampled == asked.config else sampled)
            self._trials.put(asked.number, _ended(last, TrialState.PRUNED, None, {FAILED: FAILED_VIOLATION}))
        self._trials.keep(number)
        config = random_config(self._settings, number)
        self._trials.add(self._running(config), number)
        return Draw(config)

    def _running(self, params: Mapping[str, Any]) -> FrozenTrial:
        """Return a running trial of a configuration, with the distributions of its parameters."""
        trial = CandidateTrial(np.random.default_rng(0), dict(params))
        self._settings.space.suggest(trial)
        state = TrialState.RUNNING
        return create_trial(state=state, params=trial.params, distributions=trial.distributions)

    def _frozen(self, trial: ClientTrial) -> FrozenTrial:
        """Return a trial as Optuna has it. One that is infeasible has no values, and violates a constraint."""
        running = self._running(trial.sampled or trial.params)
        constraints = dict(trial.constraints or {})
        if trial.state is ClientTrialState.ACTIVE:
            return running
        if trial.state is ClientTrialState.INFEASIBLE or trial.metrics is None:
            return _ended(running, TrialState.PRUNED, None, {**constraints, FAILED: FAILED_VIOLATION})
        objectives, metrics = self._settings.objectives, trial.metrics
        complete = _ended(
            running, TrialState.COMPLETE, [metrics[each.metric] for each in objectives], {**constraints, FAILED: 0.0}
        )
        if self._reference is not None:
            complete.user_attrs["score"] = score(metrics, self._reference[1], objectives)
        return complete


def _ended(
    trial: FrozenTrial, state: TrialState, values: Sequence[float] | None, constraints: Mapping[str, float]
) -> FrozenTrial:
    return create_trial(
        state=state,
        values=values,
        params=trial.params,
        distributions=trial.distributions,
        constraints=dict(constraints),
    )
