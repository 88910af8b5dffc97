"""Observers for programs: one passes events on to others, one ignores them, one prints a line a trial."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from records.trials import Failure, TrialRecord
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


class SilentObserver:
    """Ignore every event; see `StudyObserver`."""

    def opened(self, start: StudyStart) -> None:
        """Ignore the event."""

    def stage(self, plan: StagePlan) -> None:
        """Ignore the event."""

    def started(self, spec: TrialSpec, slot: int) -> None:
        """Ignore the event."""

    def finished(self, record: TrialRecord) -> None:
        """Ignore the event."""

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        """Ignore the event."""

    def note(self, text: str) -> None:
        """Ignore the event."""

    def tick(self, states: Sequence[WorkerState]) -> None:
        """Ignore the event."""

    def synced(self, status: SyncStatus) -> None:
        """Ignore the event."""


class LineObserver(SilentObserver):
    """Print one line for each finished trial and each note."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream

    def finished(self, record: TrialRecord) -> None:
        """Print the trial's number, round, state and score."""
        round_ = f" round {record.round}" if record.round else ""
        score = record.verdict.score if record.verdict is not None else None
        scored = f", score {score:.3f}" if score is not None else ""
        self.note(f"trial {record.number}{round_}: {record.state}{scored}")

    def note(self, text: str) -> None:
        """Print the line."""
        print(text, file=self._stream, flush=True)
