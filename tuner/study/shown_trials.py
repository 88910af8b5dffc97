"""The trials of a study that its sampler uses."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

SHOWN_TRIALS = 140
"""Trials that the sampler uses; the cost of a suggestion grows with them."""
SHOWN_BEST = 60
"""Of those, how many are the best by score; the others are the latest."""
RELEVANT_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
"""States of trials that a sampler models."""


def shown(history: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that the sampler uses: all of a short history, of a long one the best and the latest.

    The first measured trial is always among them, because scores are relative to it.
    """
    dropped = [trial for trial in history if trial.state is TrialState.FAIL]
    relevant = [trial for trial in history if trial.state in RELEVANT_STATES]
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
        return cls(
            number=trial.number,
            state=trial.state,
            value=None,
            values=trial.values,
            datetime_start=trial.datetime_start,
            datetime_complete=trial.datetime_complete,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs=trial.user_attrs,
            system_attrs=trial.system_attrs,
            intermediate_values=trial.intermediate_values,
            trial_id=trial.number,
        )

    def __deepcopy__(self, memo: object) -> SharedTrial:
        return copy.copy(self)
