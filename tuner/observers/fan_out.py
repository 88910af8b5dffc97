"""One listener that tells several."""

from __future__ import annotations

from collections.abc import Sequence

from storage.records import Failure, TrialRecord
from tuner.executors.base import WorkerState
from tuner.specs import TrialSpec
from tuner.study.protocols import StudyObserver, StudyStart


class FanOut:
    """Passes every event on, in order; see `StudyObserver`."""

    def __init__(self, *listeners: StudyObserver) -> None:
        self._listeners = listeners

    def opened(self, start: StudyStart) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.opened(start)

    def started(self, spec: TrialSpec, slot: int) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.started(spec, slot)

    def finished(self, record: TrialRecord) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.finished(record)

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.retried(spec, failure)

    def note(self, text: str) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.note(text)

    def tick(self, states: Sequence[WorkerState]) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.tick(states)
