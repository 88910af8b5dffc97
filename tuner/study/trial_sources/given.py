"""Trials of given configurations: those of the ablation and the reduced finalists."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from storage.records import Config, TrialKind
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import WorkItem


@dataclass(frozen=True)
class GivenConfiguration:
    """A configuration to measure.

    Args:
        label: name of the trial.
        config: the configuration.
        hints: the engine's values of parameters that are left out, for the sampler only.
    """

    label: str
    config: Config
    hints: Config


class GivenTrials:
    """The `TrialSource` of given configurations, in their order, for any slot."""

    def __init__(self, optuna_study: OptunaStudy, kind: TrialKind, given: Sequence[GivenConfiguration]) -> None:
        self._optuna_study, self._kind = optuna_study, kind
        self._queue = deque(given)
        self._again: deque[WorkItem] = deque()
        self.planned = [each.label for each in given]

    def next(self, slot: int) -> WorkItem | None:
        """Return the next trial; None if there is none left."""
        if self._again:
            return self._again.popleft()
        if not self._queue:
            return None
        given = self._queue.popleft()
        asked = self._optuna_study.ask_fixed(given.config, given.hints)
        return WorkItem(asked.number, 0, self._kind, asked.config, given.label)

    def exhausted(self) -> bool:
        """Return True if no trial is left to start."""
        return not self._queue and not self._again

    def give_back(self, item: WorkItem) -> None:
        """Take back a trial that the infrastructure failed."""
        self._again.append(item)
