"""The store of a driver: its operations are repeated while the database does not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Engine

from records.answers import AnswersKey, AnswersRecord
from records.trials import StudyRecord, TrialKind, TrialOutcome, TrialRecord, Verdict
from storage.errors import StorageError
from storage.store import Store
from storage.tables.mapping import FailedAttempt
from storage.waiting import DatabaseWait

T = TypeVar("T")


class PatientStore(Store):
    """A `Store` that waits, see `DatabaseWait`.

    A commit may succeed although its acknowledgement is lost. A repeated write that is refused therefore counts as
    done if the database has what it wrote.
    """

    def __init__(self, engine: Engine, wait: DatabaseWait) -> None:
        super().__init__(engine)
        self.wait = wait

    def _repeat(self, operation: Callable[[], T]) -> T:
        """Run an operation that changes nothing when it is repeated."""
        return self.wait.run(lambda _: operation())

    def _write(self, change: Callable[[], None], is_stored: Callable[[], bool]) -> None:
        """Change the database once.

        Args:
            change: one transaction.
            is_stored: whether the database has the change.
        """

        def once(again: bool) -> None:
            try:
                change()
            except StorageError:
                if not (again and is_stored()):
                    raise

        self.wait.run(once)

    def create_study(self, record: StudyRecord) -> None:
        """Create a study, see `Store`."""
        study = super().study
        self._write(partial(super().create_study, record), lambda: study(record.name) == record)

    def add_trial(self, record: TrialRecord) -> None:
        """Add a trial, see `Store`."""
        trial = super().trial
        change = partial(super().add_trial, record)
        self._write(change, lambda: trial(record.study, record.number, record.round) == record)

    def begin_attempt(self, study: str, number: int, round: int = 0) -> int:
        """Begin an attempt, see `Store`."""
        begin, attempts = super().begin_attempt, super().attempts
        before = self._repeat(partial(attempts, study, number, round))

        def once(again: bool) -> int:
            now = attempts(study, number, round) if again else before
            return begin(study, number, round) if now == before else now

        return self.wait.run(once)

    def finish_trial(self, study: str, number: int, round: int, outcome: TrialOutcome, verdict: Verdict | None) -> None:
        """Store an outcome, see `Store`."""
        trial = super().trial

        def is_stored() -> bool:
            record = trial(study, number, round)
            return record is not None and record.outcome is not None and _times(record.outcome) == _times(outcome)

        self._write(partial(super().finish_trial, study, number, round, outcome, verdict), is_stored)

    def record_failed_attempt(self, study: str, number: int, round: int, attempt: int, outcome: TrialOutcome) -> None:
        """Store a failed attempt, see `Store`."""
        failed_attempts = super().failed_attempts

        def is_stored() -> bool:
            stored = {(each.number, each.round, each.attempt): _times(each) for each in failed_attempts(study)}
            return stored.get((number, round, attempt)) == _times(outcome)

        self._write(partial(super().record_failed_attempt, study, number, round, attempt, outcome), is_stored)

    def update_study(
        self, name: str, facts: Mapping[str, Any] | None = None, conclusion: Mapping[str, Any] | None = None
    ) -> None:
        """Change a study, see `Store`."""
        self._repeat(partial(super().update_study, name, facts, conclusion))

    def set_verdicts(self, study: str, verdicts: Mapping[tuple[int, int], Verdict]) -> None:
        """Replace verdicts, see `Store`."""
        self._repeat(partial(super().set_verdicts, study, verdicts))

    def study(self, name: str) -> StudyRecord | None:
        """Read a study, see `Store`."""
        return self._repeat(partial(super().study, name))

    def studies(self) -> list[StudyRecord]:
        """Read all studies, see `Store`."""
        return self._repeat(super().studies)

    def trials(
        self,
        study: str,
        kind: TrialKind | None = None,
        finished: bool | None = None,
        after: int = -1,
        most: int | None = None,
    ) -> list[TrialRecord]:
        """Read trials, see `Store`."""
        return self._repeat(partial(super().trials, study, kind, finished, after, most))

    def trial(self, study: str, number: int, round: int = 0) -> TrialRecord | None:
        """Read a trial, see `Store`."""
        return self._repeat(partial(super().trial, study, number, round))

    def failed_attempts(self, study: str) -> list[FailedAttempt]:
        """Read failed attempts, see `Store`."""
        return self._repeat(partial(super().failed_attempts, study))

    def unsynced(self, study: str | None = None, limit: int = 100) -> list[TrialRecord]:
        """Read the trials that MLflow lacks, see `Store`."""
        return self._repeat(partial(super().unsynced, study, limit))

    def mark_synced(self, study: str, number: int, round: int, run_id: str) -> None:
        """Mark a trial as logged to MLflow, see `Store`."""
        self._repeat(partial(super().mark_synced, study, number, round, run_id))

    def synced_run(self, study: str, number: int, round: int = 0) -> str | None:
        """Read the id of a trial's run in MLflow, see `Store`."""
        return self._repeat(partial(super().synced_run, study, number, round))

    def study_run(self, study: str) -> str | None:
        """Read the id of a study's run in MLflow, see `Store`."""
        return self._repeat(partial(super().study_run, study))

    def set_study_run(self, study: str, run_id: str) -> None:
        """Store the id of a study's run in MLflow, see `Store`."""
        self._repeat(partial(super().set_study_run, study, run_id))

    def logged_counts(self, study: str) -> tuple[int, int]:
        """Count the trials that MLflow has, see `Store`."""
        return self._repeat(partial(super().logged_counts, study))

    def answers(self, key: AnswersKey) -> AnswersRecord | None:
        """Read what a server answered, see `Store`."""
        return self._repeat(partial(super().answers, key))

    def add_answers(self, record: AnswersRecord) -> None:
        """Store what a server answered, see `Store`."""
        self._repeat(partial(super().add_answers, record))


def _times(attempt: TrialOutcome | FailedAttempt) -> tuple[object, ...]:
    """Return what identifies an attempt: its times and its worker."""
    return attempt.started_at, attempt.ended_at, attempt.worker
