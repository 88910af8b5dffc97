"""The view of a study where the output is no terminal: one line a trial."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence

from storage.records import Failure, TrialRecord
from tuner.cli.output.progress import lines
from tuner.cli.output.progress.opening import opening_lines
from tuner.cli.output.progress.state import Progress
from tuner.executors.base import WorkerState
from tuner.specs import TrialSpec
from tuner.study.protocols import Stage, StagePlan, StudyStart, SyncStatus

LINE_WIDTH = 140
STEP = 10
"""Trials that MLflow logs between two lines of the wait for it."""

SUMMARY_S = 2.0
"""Seconds after which the wait for the study's summary in MLflow is shown."""

SKIP_HINT = " (Ctrl-C skips the wait, `tuner sync` logs the rest)"


def to_stderr(line: str) -> None:
    """Write a line on standard error."""
    print(line, file=sys.stderr, flush=True)


class PlainView:
    """Writes one line for each finished trial; see `StudyObserver`."""

    def __init__(
        self, write: Callable[[str], None] = to_stderr, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._monotonic = monotonic
        self._all_logged_since: float | None = None
        self._progress: Progress | None = None
        self._reported = -STEP

    @property
    def progress(self) -> Progress:
        """What is known of the study; only between `opened` and the end."""
        assert self._progress is not None
        return self._progress

    def opened(self, start: StudyStart) -> None:
        """Write what will run."""
        self._progress = Progress(start)
        for line in opening_lines(start, self._progress.done):
            self._write(line)

    def stage(self, plan: StagePlan) -> None:
        """Write which stage begins, but for the search."""
        self.progress.stage(plan)
        if plan.stage is not Stage.SEARCH:
            self._write(lines.stage_line(plan))

    def started(self, spec: TrialSpec, slot: int) -> None:
        """Write nothing: the line of the finished trial is enough."""
        self.progress.started(spec)

    def finished(self, record: TrialRecord) -> None:
        """Write the line of a trial."""
        self.progress.finished(record)
        self._write(trial_line(self.progress, record, LINE_WIDTH))

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        """Write why a trial runs again."""
        self._write(lines.retry_line(spec, failure))

    def note(self, text: str) -> None:
        """Write the line."""
        self._write(text)

    def tick(self, states: Sequence[WorkerState]) -> None:
        """Note what the workers do."""
        self.progress.workers = states

    def synced(self, status: SyncStatus) -> None:
        """Write, at the end of a study, how far MLflow is, every `STEP` trials."""
        self.progress.mlflow = status
        if status.waiting and not status.complete and status.logged >= self._reported + STEP:
            self._reported = status.logged
            self._write(lines.sync_line(status) + (SKIP_HINT if not status.logged else ""))
        if status.waiting and status.complete:
            self._show_wait_for_summary(status)

    def _show_wait_for_summary(self, status: SyncStatus) -> None:
        """Write once that only the study's summary is waited for, if that takes long."""
        if self._all_logged_since is None:
            self._all_logged_since = self._monotonic()
        elif self._monotonic() - self._all_logged_since > SUMMARY_S:
            self._all_logged_since = math.inf
            self._write(lines.sync_line(status) + SKIP_HINT)

    def close(self) -> None:
        """Do nothing."""


def trial_line(progress: Progress, record: TrialRecord, width: int) -> str:
    """Return what came of a trial: `[13/60] #12 ok, score 0.749: …; quantization=fp8 +8 more`."""
    counted = progress.text_of_round(record.round) or f"{progress.stage_done}/{progress.stage_trials}"
    line = f"[{counted}] {lines.trial_line(progress.rescored(record), progress.spec.goals.objectives)}"
    return lines.end_with_configuration(line, record, progress.defaults, width)
