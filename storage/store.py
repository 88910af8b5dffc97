"""The store: what the tuner writes down and reads back. The only door to the `tuner_` tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, Select, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, contains_eager, joinedload, subqueryload

from storage import database, mapping
from storage.errors import StorageError
from storage.mapping import FailedAttempt
from storage.models import NAME_LENGTH, FailureRow, StudyRow, SyncRow, TimingRow, TrialRow
from storage.records import StudyRecord, TrialKind, TrialOutcome, TrialRecord, Verdict

_ORDER = (TrialRow.study_id, TrialRow.number, TrialRow.round)


def open_store(url: str) -> Store:
    """Open a database (a path or an SQLAlchemy URL) and bring its schema to the newest version.

    Raises:
        StorageError: one line, without the password, if it cannot be reached or written, or its schema is newer.
    """
    engine = database.connect(database.parse(url))
    try:
        database.prepare(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine)


class Store:
    """Studies and trials in one database; safe to use from several threads and processes.

    Every method is one transaction, and raises `StorageError` if the database fails or if a study or a trial that it
    is told to change does not exist.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = database.writing(engine)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with database.translated(self._engine.url), Session(self._engine) as session, session.begin():
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with database.translated(self._engine.url), Session(self._writer) as session, session.begin():
            yield session

    def create_study(self, record: StudyRecord) -> None:
        """Write a new study down; refused if one has its name."""
        if not 1 <= len(record.name) <= NAME_LENGTH or not record.name.isprintable():
            raise StorageError(f"a study's name is 1 to {NAME_LENGTH} printable characters, not {record.name!r:.60}")
        with self._writing() as session:
            session.add(mapping.study_row(record))
            try:
                session.flush()
            except IntegrityError:
                raise StorageError(f"there is already a study called {record.name!r}; choose another name") from None

    def study(self, name: str) -> StudyRecord | None:
        """Return a study; None if there is none of that name."""
        with self._reading() as session:
            row = session.scalar(select(StudyRow).where(StudyRow.name == name))
            return None if row is None else mapping.study_record(row)

    def studies(self) -> list[StudyRecord]:
        """Return all studies, oldest first."""
        with self._reading() as session:
            return [mapping.study_record(row) for row in session.scalars(select(StudyRow).order_by(StudyRow.id))]

    def update_study(
        self, name: str, facts: Mapping[str, Any] | None = None, conclusion: Mapping[str, Any] | None = None
    ) -> None:
        """Merge `facts` into the study's (top-level keys are replaced) and set its conclusion; None leaves it."""
        with self._writing() as session:
            row = _study_row(session, name, lock=True)
            if facts is not None:
                row.facts = {**row.facts, **mapping.plain("facts", facts)}
            if conclusion is not None:
                row.conclusion = mapping.plain("conclusion", conclusion)

    def add_trial(self, record: TrialRecord) -> None:
        """Write a pending trial down; refused if it has an outcome or its number and round are there already."""
        if record.outcome is not None or record.verdict is not None:
            raise StorageError(f"{_named(record.study, record.number, record.round)} must be added before it is run")
        with self._writing() as session:
            session.add(mapping.trial_row(record, _study_row(session, record.study)))
            try:
                session.flush()
            except IntegrityError:
                named = _named(record.study, record.number, record.round)
                raise StorageError(f"{named} is already there; read it with Store.trial") from None

    def begin_attempt(self, study: str, number: int, round: int = 0) -> int:
        """Count one more attempt at a pending trial and return which one it is, from 1."""
        with self._writing() as session:
            row = _pending(session, study, number, round)
            row.attempts += 1
            return row.attempts

    def finish_trial(self, study: str, number: int, round: int, outcome: TrialOutcome, verdict: Verdict | None) -> None:
        """Write a trial's outcome and verdict, all or nothing.

        Refused if the trial is finished already, if the outcome's provenance is not the study's, if it holds neither
        a repeat nor a failure, or if a number in it is inf or nan.
        """
        named = _named(study, number, round)
        if outcome.failure is None and not outcome.repeats:
            raise StorageError(f"the outcome of {named} holds neither a repeat nor a failure")
        with self._writing() as session:
            row = _pending(session, study, number, round)
            _refuse_mixed_provenance(row, outcome, named)
            for table in (FailureRow, TimingRow):
                session.execute(delete(table).where(table.trial_id == row.id, table.attempt == row.attempts))
            columns = {**mapping.outcome_columns(outcome), **mapping.verdict_columns(verdict)}
            for name, value in columns.items():
                setattr(row, name, value)
            session.add_all(mapping.outcome_rows(row.id, row.attempts, outcome))

    def record_failed_attempt(self, study: str, number: int, round: int, attempt: int, outcome: TrialOutcome) -> None:
        """Write down an attempt that failed and will be retried; the trial stays pending.

        Refused if the outcome has no failure, or that attempt has not begun or is recorded already.
        """
        named = _named(study, number, round)
        if outcome.failure is None:
            raise StorageError(f"attempt {attempt} of {named} did not fail; finish the trial instead")
        with self._writing() as session:
            row = _pending(session, study, number, round)
            _refuse_mixed_provenance(row, outcome, named)
            if not 1 <= attempt <= row.attempts:
                raise StorageError(f"attempt {attempt} of {named} has not begun: {row.attempts} have")
            session.add_all(mapping.attempt_rows(row.id, attempt, outcome))
            try:
                session.flush()
            except IntegrityError:
                raise StorageError(f"attempt {attempt} of {named} is recorded already") from None

    def trials(self, study: str, kind: TrialKind | None = None, finished: bool | None = None) -> list[TrialRecord]:
        """Return a study's trials in full, by number and round; five statements, however many there are."""
        with self._reading() as session:
            query = select(TrialRow).where(TrialRow.study_id == _study_row(session, study).id)
            if kind is not None:
                query = query.where(TrialRow.kind == kind.value)
            if finished is not None:
                query = query.where(TrialRow.ended_at.is_not(None) if finished else TrialRow.ended_at.is_(None))
            return _records(session, query)

    def trial(self, study: str, number: int, round: int = 0) -> TrialRecord | None:
        """Return one trial; None if the study has no such."""
        with self._reading() as session:
            query = select(TrialRow).where(
                TrialRow.study_id == _study_row(session, study).id, TrialRow.number == number, TrialRow.round == round
            )
            return next(iter(_records(session, query)), None)

    def failed_attempts(self, study: str) -> list[FailedAttempt]:
        """Return the attempts that failed and were retried, by number, round and attempt."""
        with self._reading() as session:
            query = (
                select(TrialRow)
                .join(TrialRow.failures)
                .where(TrialRow.study_id == _study_row(session, study).id)
                .where(or_(TrialRow.ended_at.is_(None), FailureRow.attempt != TrialRow.attempts))
                .order_by(*_ORDER, FailureRow.attempt)
                .options(contains_eager(TrialRow.failures), subqueryload(TrialRow.timings))
            )
            rows = session.scalars(query).unique().all()
            return [mapping.failed_attempt(failure, row) for row in rows for failure in row.failures]

    def set_verdicts(self, study: str, verdicts: Mapping[tuple[int, int], Verdict]) -> None:
        """Replace the verdicts of finished trials, keyed by (number, round), all or nothing."""
        with self._writing() as session:
            found = _finished_ids(session, study)
            missing = [key for key in verdicts if key not in found]
            if missing:
                raise StorageError(f"{_named(study, *missing[0])} has no outcome to judge")
            changes = [{"id": found[key], **mapping.verdict_columns(verdict)} for key, verdict in verdicts.items()]
            if changes:
                session.execute(update(TrialRow), changes)

    def unsynced(self, study: str | None = None, limit: int = 100) -> list[TrialRecord]:
        """Return at most `limit` finished trials that are not marked as synced, of one study or of all."""
        with self._reading() as session:
            query = select(TrialRow).where(TrialRow.ended_at.is_not(None))
            query = query.where(~select(SyncRow).where(SyncRow.trial_id == TrialRow.id).exists())
            if study is not None:
                query = query.where(TrialRow.study_id == _study_row(session, study).id)
            return _records(session, query.limit(limit))

    def logged_counts(self, study: str) -> tuple[int, int]:
        """Return how many of a study's finished trials are marked as synced, and how many are finished."""
        with self._reading() as session:
            finished = select(func.count()).select_from(TrialRow).where(TrialRow.ended_at.is_not(None))
            finished = finished.where(TrialRow.study_id == _study_row(session, study).id)
            synced = finished.join(SyncRow, SyncRow.trial_id == TrialRow.id)
            return session.scalar(synced) or 0, session.scalar(finished) or 0

    def mark_synced(self, study: str, number: int, round: int, run_id: str) -> None:
        """Mark a finished trial as logged; the same run again changes nothing, another one is refused."""
        with self._writing() as session:
            trial_id = _finished_ids(session, study).get((number, round))
            if trial_id is None:
                raise StorageError(f"{_named(study, number, round)} has no outcome that could be synced")
            row = session.get(SyncRow, trial_id)
            if row is None:
                session.add(SyncRow(trial_id=trial_id, run_id=run_id, synced_at=datetime.now(UTC)))
            elif row.run_id != run_id:
                raise StorageError(f"{_named(study, number, round)} is already synced as run {row.run_id}")

    def synced_run(self, study: str, number: int, round: int = 0) -> str | None:
        """Return the run that a trial was marked with; None if it is not marked."""
        with self._reading() as session:
            query = select(SyncRow.run_id).join(TrialRow, TrialRow.id == SyncRow.trial_id)
            trial = (TrialRow.number == number, TrialRow.round == round)
            return session.scalar(query.where(TrialRow.study_id == _study_row(session, study).id, *trial))

    def study_run(self, study: str) -> str | None:
        """Return the study's parent run; None if it has none yet."""
        with self._reading() as session:
            return _study_row(session, study).mlflow_run

    def set_study_run(self, study: str, run_id: str) -> None:
        """Remember the study's parent run; the last one counts."""
        with self._writing() as session:
            _study_row(session, study, lock=True).mlflow_run = run_id


def _named(study: str, number: int, round: int) -> str:
    again = f" (round {round})" if round else ""
    return f"trial {number}{again} of study {study!r}"


def _study_row(session: Session, name: str, lock: bool = False) -> StudyRow:
    query = select(StudyRow).where(StudyRow.name == name)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        names = session.scalars(select(StudyRow.name).order_by(StudyRow.id)).all()
        there = f"there are: {', '.join(names)}" if names else "the database has no study yet"
        raise StorageError(f"no study is called {name!r}; {there}")
    return row


def _pending(session: Session, study: str, number: int, round: int) -> TrialRow:
    query = select(TrialRow).where(
        TrialRow.study_id == _study_row(session, study).id, TrialRow.number == number, TrialRow.round == round
    )
    row = session.scalar(query.with_for_update())
    if row is None:
        raise StorageError(f"there is no {_named(study, number, round)}; add it first")
    if row.ended_at is not None:
        raise StorageError(f"{_named(study, number, round)} is finished already")
    return row


def _refuse_mixed_provenance(row: TrialRow, outcome: TrialOutcome, named: str) -> None:
    if outcome.provenance.value != row.provenance:
        raise StorageError(
            f"{named} belongs to a {row.provenance} study and its outcome is {outcome.provenance.value}: "
            "the two never mix; use another study"
        )


def _finished_ids(session: Session, study: str) -> dict[tuple[int, int], int]:
    query = select(TrialRow.number, TrialRow.round, TrialRow.id).where(
        TrialRow.study_id == _study_row(session, study).id, TrialRow.ended_at.is_not(None)
    )
    return {(number, round): trial_id for number, round, trial_id in session.execute(query)}


def _records(session: Session, query: Select[TrialRow]) -> list[TrialRecord]:
    parts = (TrialRow.repeats, TrialRow.failures, TrialRow.timings)
    query = query.order_by(*_ORDER).options(
        joinedload(TrialRow.study), joinedload(TrialRow.facts), *(subqueryload(part) for part in parts)
    )
    return [mapping.trial_record(row, row.study.name) for row in session.scalars(query)]
