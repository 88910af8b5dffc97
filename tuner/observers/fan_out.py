"""Observers for programs: one passes events on to others, one prints a line a trial."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from records.trials import Failure, TrialRecord
from tuner.executors.base import WorkerState
from tuner.specs import TrialSpec
from tuner.study.protocols import StagePlan, StudyObserver, StudyStart, SyncStatus


class FanOut(StudyObserver):
    """Passes every event on to its observers, in their order; see `StudyObserver`."""

    def __init__(self, *observers: StudyObserver) -> None:
        self._observers = observers

    def opened(self, start: StudyStart) -> None:
        for observer in self._observers:
            observer.opened(start)

    def stage(self, plan: StagePlan) -> None:
        for observer in self._observers:
            observer.stage(plan)

    def started(self, spec: TrialSpec, slot: int) -> None:
        for observer in self._observers:
            observer.started(spec, slot)

    def finished(self, record: TrialRecord) -> None:
        for observer in self._observers:
            observer.finished(record)

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        for observer in self._observers:
            observer.retried(spec, failure)

    def note(self, text: str) -> None:
        for observer in self._observers:
            observer.note(text)

    def tick(self, states: Sequence[WorkerState]) -> None:
        for observer in self._observers:
            observer.tick(states)

    def synced(self, status: SyncStatus) -> None:
        for observer in self._observers:
            observer.synced(status)


class LineObserver(StudyObserver):
    """Print one line for each finished trial and each note."""

    def finished(self, record: TrialRecord) -> None:
        """Print the trial's number, round, state and score."""
        round_ = f" round {record.round}" if record.round else ""
        score = record.verdict.score if record.verdict is not None else None
        scored = f", score {score:.3f}" if score is not None else ""
        self.note(f"trial {record.number}{round_}: {record.state}{scored}")

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
