"""The part of an Optuna study that the sampler reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial


class StudyView(Protocol):
    """Trials and directions of a study; `optuna.Study` is one."""

    @property
    def directions(self) -> list[StudyDirection]:
        """The directions of the objectives."""

    def get_trials(self, deepcopy: bool = True) -> list[FrozenTrial]:
        """Return the trials."""


@dataclass(frozen=True)
class SelectedTrials:
    """A view of some trials of a study, under their own numbers.

    Args:
        trials: the trials.
        directions: of the objectives.
    """

    trials: Sequence[FrozenTrial]
    directions: list[StudyDirection]

    def get_trials(self, deepcopy: bool = True) -> list[FrozenTrial]:
        """Return the trials; they are never copied."""
        return list(self.trials)
