"""Observers for programs: one passes events on to others, one prints a line a trial."""

from __future__ import annotations

import sys
from collections.abc import Callable

from records.trials import TrialRecord
from tuner.study.protocols import StudyObserver


class FanOut(StudyObserver):
    """Passes every event on to its observers, in their order; see `StudyObserver`."""

    def __init__(self, *observers: StudyObserver) -> None:
        self._observers = observers


def _passed_on(event: str) -> Callable[..., None]:
    def pass_on(self: FanOut, *values: object) -> None:
        for observer in self._observers:
            getattr(observer, event)(*values)

    return pass_on


# Every event, also those added later: MLflow and the learner would miss an event that is not passed on.
for _event in [name for name in vars(StudyObserver) if not name.startswith("_")]:
    setattr(FanOut, _event, _passed_on(_event))


class LineObserver(StudyObserver):
    """Print one line for each finished trial and each note."""

    def finished(self, record: TrialRecord) -> None:
        """Print the trial's number, round, state and score."""
        round_ = f" round {record.round}" if record.round else ""
        scored = f", score {record.score:.3f}" if record.score is not None else ""
        self.note(f"trial {record.number}{round_}: {record.state}{scored}")

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
