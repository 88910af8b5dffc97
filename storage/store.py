"""The store: all reads and writes of the tuner's tables, in terms of `records.trials`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import contains_eager, subqueryload

from records.trials import StudyRecord, TrialKind, TrialOutcome, TrialRecord, Verdict
from storage import database
from storage.errors import StorageError
from storage.outbox import Outbox
from storage.tables import mapping
from storage.tables.lookup import (
    TRIAL_ORDER,
    existing_study,
    finished_trial_ids,
    pending_trial,
    read_trials,
    require_same_provenance,
    trial_query,
    trial_text,
)
from storage.tables.mapping import FailedAttempt
from storage.tables.models import NAME_LENGTH, FailureRow, RepeatRow, StudyRow, TimingRow, TrialRow
from storage.waiting import DatabaseWait


def open_store(url: str, wait: DatabaseWait | None = None) -> Store:
    """Open a database, create or migrate the tuner's tables in it, and return the store.

    Args:
        url: a path such as `study.db`, which becomes an SQLite file, or the URL of an SQLite or PostgreSQL database.
        wait: how the store waits for a database that stops answering later; None: it does not wait.

    Raises:
        StorageError: if the kind of database is not supported, the database cannot be reached or written, or a newer
            version of the tuner wrote it. The message is one line, without the password.
    """
    if wait is None:
        return Store(database.open_engine(url))
    from storage.patient_store import PatientStore  # its base class is below

    return PatientStore(database.open_engine(url, wait.busy_s), wait)


class Store(Outbox):
    """Studies and trials in one database; threads and processes can share the database.

    Every method is one transaction, and either all of its changes happen or none.

    Raises:
        StorageError: by every method, if the database fails, and if the named study does not exist, unless the method
            returns None for that. Methods list further reasons.
    """

    def create_study(self, record: StudyRecord) -> None:
        """Store a new study.

        Raises:
            StorageError: if the name is taken, or is not 1 to 512 printable characters, or if a value is not JSON.
        """
        if not 1 <= len(record.name) <= NAME_LENGTH or not record.name.isprintable():
            raise StorageError(f"a study's name has 1 to {NAME_LENGTH} printable characters, not {record.name!r:.60}")
        with self._writing() as session:
            session.add(mapping.study_row(record))
            try:
                session.flush()
            except IntegrityError:
                raise StorageError(f"there is already a study called {record.name!r}; choose another name") from None

    def study(self, name: str) -> StudyRecord | None:
        """Return the study of that name; None if there is none."""
        with self._reading() as session:
            row = session.scalar(select(StudyRow).where(StudyRow.name == name))
            return None if row is None else mapping.study_record(row)

    def studies(self) -> list[StudyRecord]:
        """Return all studies, in the order in which they were created."""
        with self._reading() as session:
            return [mapping.study_record(row) for row in session.scalars(select(StudyRow).order_by(StudyRow.id))]

    def progress(self, names: Sequence[str]) -> dict[str, tuple[int, int, int, float | None]]:
        """Return how far studies are, by name; a study that does not exist yet is left out.

        The four numbers are the finished trials of the search, the finished measurements in rounds, the trials of the
        search without a benchmark (they failed), and the best score of the search (None without one).
        """
        ended, searched = TrialRow.ended_at.is_not(None), TrialRow.round == 0
        failed = ~select(RepeatRow.trial_id).where(RepeatRow.trial_id == TrialRow.id).exists()
        counts = (
            func.count().filter(ended, searched),
            func.count().filter(ended, ~searched),
            func.count().filter(ended, searched, failed),
            func.max(TrialRow.score).filter(searched),
        )
        with self._reading() as session:
            query = select(StudyRow.id, StudyRow.name).where(StudyRow.name.in_(names))
            ids = {row.id: row.name for row in session.execute(query)}
            found: dict[str, tuple[int, int, int, float | None]] = dict.fromkeys(ids.values(), (0, 0, 0, None))
            # Joined with the studies, PostgreSQL reads every trial once there are many names.
            of_trials = select(TrialRow.study_id, *counts).where(TrialRow.study_id.in_(ids))
            for id, trials, rounds, without, score in session.execute(of_trials.group_by(TrialRow.study_id)):
                found[ids[id]] = (trials, rounds, without, score)
            return found

    def scores(self, names: Sequence[str], most: int) -> dict[str, list[float | None]]:
        """Return the scores of the search of studies in the order of the trials; None: a trial without one.

        Args:
            names: of the studies; one that does not exist is left out.
            most: trials with a number below it count.
        """
        counted = (TrialRow.round == 0, TrialRow.number < most, TrialRow.ended_at.is_not(None))
        query = (
            select(StudyRow.name, TrialRow.score)
            .join(TrialRow, TrialRow.study_id == StudyRow.id)
            .where(StudyRow.name.in_(names), *counted)
            .order_by(StudyRow.id, TrialRow.number)
        )
        found: dict[str, list[float | None]] = {}
        with self._reading() as session:
            for name, score in session.execute(query):
                found.setdefault(name, []).append(score)
        return found

    def update_study(
        self, name: str, facts: Mapping[str, Any] | None = None, conclusion: Mapping[str, Any] | None = None
    ) -> None:
        """Change a study's facts and conclusion.

        Args:
            name: the study.
            facts: new facts. Each top-level key replaces the old value of that key; other keys stay.
            conclusion: the new conclusion; None keeps the old one.

        Raises:
            StorageError: if a value is not JSON.
        """
        with self._writing() as session:
            row = existing_study(session, name, lock=True)
            if facts is not None:
                row.facts = {**row.facts, **mapping.to_json_value("facts", facts)}
            if conclusion is not None:
                row.conclusion = mapping.to_json_value("conclusion", conclusion)

    def add_trial(self, record: TrialRecord) -> None:
        """Store a new pending trial.

        Raises:
            StorageError: if the record has an outcome or a verdict, or if its number and round exist already.
        """
        trial = trial_text(record.study, record.number, record.round)
        if record.outcome is not None or record.verdict is not None:
            raise StorageError(f"{trial} has an outcome already; add a trial before it runs")
        with self._writing() as session:
            session.add(mapping.trial_row(record, existing_study(session, record.study)))
            try:
                session.flush()
            except IntegrityError:
                raise StorageError(f"{trial} exists already; read it with Store.trial") from None

    def begin_attempt(self, study: str, number: int, round: int = 0) -> int:
        """Count one more attempt at a pending trial and return its number, from 1.

        Raises:
            StorageError: if there is no such trial, or it is finished.
        """
        with self._writing() as session:
            row = pending_trial(session, study, number, round)
            row.attempts += 1
            return row.attempts

    def attempts(self, study: str, number: int, round: int = 0) -> int:
        """Return how many attempts at a trial have begun; 0 if there is no such trial."""
        with self._reading() as session:
            trial = trial_query(session, study, number, round).with_only_columns(TrialRow.attempts)
            return session.scalar(trial) or 0

    def finish_trial(self, study: str, number: int, round: int, outcome: TrialOutcome, verdict: Verdict | None) -> None:
        """Store the outcome and the verdict of a pending trial.

        Args:
            study: the trial's study.
            number: the trial's number.
            round: the trial's round, 0 for the trial itself.
            outcome: the result of the trial's last attempt, with a repeat or a failure.
            verdict: its evaluation; None for a failure.

        Raises:
            StorageError: if there is no such trial, it is finished, the outcome has another provenance than the study
                or neither a repeat nor a failure, or a number is inf or nan.
        """
        trial = trial_text(study, number, round)
        if outcome.failure is None and not outcome.repeats:
            raise StorageError(f"the outcome of {trial} holds neither a repeat nor a failure")
        with self._writing() as session:
            row = pending_trial(session, study, number, round)
            require_same_provenance(row, outcome, trial)
            for table in (FailureRow, TimingRow):
                session.execute(delete(table).where(table.trial_id == row.id, table.attempt == row.attempts))
            columns = {**mapping.outcome_columns(outcome), **mapping.verdict_columns(verdict)}
            for name, value in columns.items():
                setattr(row, name, value)
            session.add_all(mapping.outcome_rows(row.id, row.attempts, outcome))

    def record_failed_attempt(self, study: str, number: int, round: int, attempt: int, outcome: TrialOutcome) -> None:
        """Store a failed attempt that will be retried; the trial stays pending.

        Args:
            study: the trial's study.
            number: the trial's number.
            round: the trial's round, 0 for the trial itself.
            attempt: the attempt, from 1, see `begin_attempt`.
            outcome: the result of the attempt, with a failure.

        Raises:
            StorageError: if there is no such trial, it is finished, the outcome has no failure or another provenance
                than the study, or the attempt did not begin or is stored already.
        """
        trial = trial_text(study, number, round)
        if outcome.failure is None:
            raise StorageError(f"attempt {attempt} of {trial} did not fail; finish the trial instead")
        with self._writing() as session:
            row = pending_trial(session, study, number, round)
            require_same_provenance(row, outcome, trial)
            if not 1 <= attempt <= row.attempts:
                raise StorageError(f"attempt {attempt} of {trial} has not begun: the last one is {row.attempts}")
            session.add_all(mapping.attempt_rows(row.id, attempt, outcome))
            try:
                session.flush()
            except IntegrityError:
                raise StorageError(f"attempt {attempt} of {trial} is stored already") from None

    def trials(
        self,
        study: str,
        kind: TrialKind | None = None,
        finished: bool | None = None,
        after: int = -1,
        most: int | None = None,
    ) -> list[TrialRecord]:
        """Return the trials of a study by number and round, each with its outcome, in a constant number of statements.

        Args:
            study: the study.
            kind: return only trials of this kind; None returns all.
            finished: True returns trials with an outcome, False pending ones, None all.
            after: return only trials with a larger number.
            most: return at most so many numbers, the smallest first, each with all its rounds; None returns all.
        """
        with self._reading() as session:
            query = select(TrialRow).where(TrialRow.study_id == existing_study(session, study).id)
            if after >= 0:
                query = query.where(TrialRow.number > after)
            if most is not None:
                numbers = query.with_only_columns(TrialRow.number).distinct().order_by(TrialRow.number).limit(most)
                query = query.where(TrialRow.number.in_(numbers))
            if kind is not None:
                query = query.where(TrialRow.kind == kind.value)
            if finished is not None:
                query = query.where(TrialRow.ended_at.is_not(None) if finished else TrialRow.ended_at.is_(None))
            return read_trials(session, query)

    def trial(self, study: str, number: int, round: int = 0) -> TrialRecord | None:
        """Return a trial with its outcome; None if the study has no trial of that number and round."""
        with self._reading() as session:
            return next(iter(read_trials(session, trial_query(session, study, number, round))), None)

    def failed_attempts(self, study: str) -> list[FailedAttempt]:
        """Return the failed attempts that were or will be retried, by number, round and attempt."""
        with self._reading() as session:
            query = (
                select(TrialRow)
                .join(TrialRow.failures)
                .where(TrialRow.study_id == existing_study(session, study).id)
                .where(or_(TrialRow.ended_at.is_(None), FailureRow.attempt != TrialRow.attempts))
                .order_by(*TRIAL_ORDER, FailureRow.attempt)
                .options(contains_eager(TrialRow.failures), subqueryload(TrialRow.timings))
            )
            rows = session.scalars(query).unique().all()
            return [mapping.failed_attempt(failure, row) for row in rows for failure in row.failures]

    def set_verdicts(self, study: str, verdicts: Mapping[tuple[int, int], Verdict]) -> None:
        """Replace the verdicts of finished trials.

        Args:
            study: the study.
            verdicts: (number, round) to the new verdict.

        Raises:
            StorageError: if one of the trials does not exist or is pending.
        """
        with self._writing() as session:
            ids = finished_trial_ids(session, study)
            missing = [key for key in verdicts if key not in ids]
            if missing:
                raise StorageError(f"{trial_text(study, *missing[0])} has no outcome for a verdict")
            changes = [{"id": ids[key], **mapping.verdict_columns(verdict)} for key, verdict in verdicts.items()]
            if changes:
                session.execute(update(TrialRow), changes)
