"""An observer that passes every event on to several other observers."""

from __future__ import annotations

from collections.abc import Sequence

from storage.records import Failure, TrialRecord
from tuner.executors.base import WorkerState
from tuner.specs import TrialSpec
from tuner.study.protocols import StagePlan, StudyObserver, StudyStart, SyncStatus


class FanOut:
    """Passes every event on to its observers, in their order; see `StudyObserver`."""

    def __init__(self, *observers: StudyObserver) -> None:
        self._observers = observers

    def opened(self, start: StudyStart) -> None:
        """Pass the event on."""
        for observer in self._observers:
            observer.opened(start)

    def stage(self, plan: StagePlan) -> None:
        """Pass the event on."""
        for observer in self._observers:
            observer.stage(plan)

    def started(self, spec: TrialSpec, slot: int) -> None:
        """Pass the event on."""
        for observer in self._observers:
            observer.started(spec, slot)

    def finished(self, record: TrialRecord) -> None:
        """Pass the event on."""
        for observer in self._observers:
            observer.finished(record)

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        """Pass the event on."""
        for observer in self._observers:
            observer.retried(spec, failure)

    def note(self, text: str) -> None:
        """Pass the event on."""
        for observer in self._observers:
            observer.note(text)

    def tick(self, states: Sequence[WorkerState]) -> None:
        """Pass the event on."""
        for observer in self._observers:
            observer.tick(states)

    def synced(self, status: SyncStatus) -> None:
        """Pass the event on."""
        for observer in self._observers:
            observer.synced(status)
