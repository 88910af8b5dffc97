"""Rows of studies and trials: found, read as records, written and deleted within a transaction of the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Table, and_, delete, insert, select
from sqlalchemy.orm import Session

from records.trials import (
    Cut,
    FailedAttempt,
    Failure,
    Repeat,
    ServerFacts,
    TrialOutcome,
    TrialRecord,
    Verdict,
)
from storage.columns import record_of, to_json_value, values_of
from storage.errors import StorageError
from storage.tables import FAILURES, LESSONS, REPEATS, SERVER_FACTS, STUDIES, SYNCS, TIMINGS, TRIALS

TRIAL_ORDER = (TRIALS.c.study_id, TRIALS.c.number, TRIALS.c.round)


def trial_text(study: str, number: int, round: int) -> str:
    """Return a trial for an error message: `trial 12 (round 2) of study 's'`."""
    suffix = f" (round {round})" if round else ""
    return f"trial {number}{suffix} of study {study!r}"


def existing_study(session: Session, name: str, *more: ColumnElement[Any], lock: bool = False) -> Row[Any]:
    """Return the `id` of a study and some more columns; `lock` keeps other transactions from changing it meanwhile.

    Raises:
        StorageError: if there is no study of that name; the message lists the studies of the database.
    """
    query = select(STUDIES.c.id, *more).where(STUDIES.c.name == name)
    row = session.execute(query.with_for_update() if lock else query).first()
    if row is None:
        names = session.scalars(select(STUDIES.c.name).order_by(STUDIES.c.id)).all()
        present = f"the database has: {', '.join(names)}" if names else "the database has no study yet"
        raise StorageError(f"no study is called {name!r}; {present}")
    return row


def is_trial(session: Session, study: str, number: int, round: int) -> ColumnElement[bool]:
    """Return the condition for the row of one trial.

    Raises:
        StorageError: if there is no such study.
    """
    study_id = existing_study(session, study).id
    return and_(TRIALS.c.study_id == study_id, TRIALS.c.number == number, TRIALS.c.round == round)


def pending_trial(session: Session, study: str, number: int, round: int) -> Row[Any]:
    """Return `id`, `attempts` and `provenance` of a pending trial, locked until this transaction ends.

    Raises:
        StorageError: if there is no such trial, or it is finished.
    """
    query = select(*[TRIALS.c[name] for name in ("id", "attempts", "provenance", "ended_at")])
    row = session.execute(query.where(is_trial(session, study, number, round)).with_for_update()).first()
    if row is None:
        raise StorageError(f"there is no {trial_text(study, number, round)}; add it first")
    if row.ended_at is not None:
        raise StorageError(f"{trial_text(study, number, round)} is finished already")
    return row


def finished_trial_ids(session: Session, study: str) -> dict[tuple[int, int], int]:
    """Map (number, round) of each finished trial of a study to the primary key of its row."""
    query = select(TRIALS.c.number, TRIALS.c.round, TRIALS.c.id).where(
        TRIALS.c.study_id == existing_study(session, study).id, TRIALS.c.ended_at.is_not(None)
    )
    return {(number, round): trial_id for number, round, trial_id in session.execute(query)}


def has_attempt(session: Session, table: Table, outcome: TrialOutcome, *conditions: ColumnElement[bool]) -> bool:
    """Return whether a row of `TRIALS` or `FAILURES` has the times and the worker of an outcome."""
    query = select(table.c.started_at, table.c.ended_at, table.c.worker).where(*conditions)
    return session.execute(query).first() == (outcome.started_at, outcome.ended_at, outcome.worker)


def require_same_provenance(row: Row[Any], outcome: TrialOutcome, trial: str) -> None:
    """Check that an outcome has the provenance of its study.

    Raises:
        StorageError: if it has the other one.
    """
    if outcome.provenance.value != row.provenance:
        raise StorageError(
            f"{trial} belongs to a {row.provenance} study, but its outcome is {outcome.provenance.value}: "
            "a study holds either measured or simulated trials; use another study"
        )


def read_trials(session: Session, *conditions: ColumnElement[bool], limit: int | None = None) -> list[TrialRecord]:
    """Return trials by study, number and round with what belongs to them, in a constant number of statements."""
    query = select(TRIALS, STUDIES.c.name.label("study"), SERVER_FACTS)
    query = query.join(STUDIES, STUDIES.c.id == TRIALS.c.study_id).outerjoin(SERVER_FACTS)
    rows = session.execute(query.where(*conditions).order_by(*TRIAL_ORDER).limit(limit)).all()
    ids = select(TRIALS.c.id).where(*conditions).order_by(*TRIAL_ORDER).limit(limit)
    repeats, failures, timings = (_by_trial(session, table, ids) for table in (REPEATS, FAILURES, TIMINGS))
    records = []
    for row in rows:
        outcome = None
        if row.ended_at is not None:
            last = next((each for each in failures[row.id] if each.attempt == row.attempts), None)
            outcome = record_of(
                TrialOutcome,
                row,
                timings=_timings(timings[row.id], row.attempts),
                repeats=tuple(record_of(Repeat, each, index=each.position) for each in repeats[row.id]),
                server=None if row.trial_id is None else record_of(ServerFacts, row),
                failure=None if last is None else record_of(Failure, last),
                cut=None if row.cut is None else Cut(**row.cut),
            )
        records.append(record_of(TrialRecord, row, outcome=outcome, verdict=_verdict(row)))
    return records


def read_failed_attempts(session: Session, *conditions: ColumnElement[bool]) -> list[FailedAttempt]:
    """Return failed attempts by study, number, round and attempt."""
    query = select(FAILURES, TRIALS.c.number, TRIALS.c.round).join(TRIALS, TRIALS.c.id == FAILURES.c.trial_id)
    rows = session.execute(query.where(*conditions).order_by(*TRIAL_ORDER, FAILURES.c.attempt)).all()
    ids = query.with_only_columns(FAILURES.c.trial_id).where(*conditions)
    timings = _by_trial(session, TIMINGS, ids)
    return [
        record_of(
            FailedAttempt,
            row,
            failure=record_of(Failure, row),
            timings=_timings(timings[row.trial_id], row.attempt),
        )
        for row in rows
    ]


def _by_trial(session: Session, table: Table, ids: Select[Any]) -> Mapping[int, list[Row[Any]]]:
    order = [table.c[name] for name in ("attempt", "position") if name in table.c]
    found: dict[int, list[Row[Any]]] = defaultdict(list)
    for row in session.execute(select(table).where(table.c.trial_id.in_(ids)).order_by(table.c.trial_id, *order)):
        found[row.trial_id].append(row)
    return found


def _timings(rows: list[Row[Any]], attempt: int) -> dict[str, float]:
    return {row.phase: row.seconds for row in rows if row.attempt == attempt}


def _verdict(row: Row[Any]) -> Verdict | None:
    if row.verdict_values is None:
        return None
    return Verdict(row.verdict_values, row.verdict_constraints or {}, row.score)


def verdict_values(verdict: Verdict | None) -> dict[str, Any]:
    """Return the columns of `TRIALS` that hold a verdict, all None without one.

    Raises:
        StorageError: if a value is inf or nan.
    """
    if verdict is None:
        return {"verdict_values": None, "verdict_constraints": None, "score": None}
    return {
        "verdict_values": to_json_value("objective", verdict.values),
        "verdict_constraints": to_json_value("constraint", verdict.constraints),
        "score": to_json_value("score", verdict.score),
    }


def add_parts(session: Session, trial_id: int, attempt: int, outcome: TrialOutcome) -> None:
    """Add the rows of an outcome in the other tables: repeats, server facts, failure, timings.

    Raises:
        StorageError: if a number is inf or nan.
    """
    repeats = [
        {"trial_id": trial_id, "position": each.index, **values_of(REPEATS, each, f"repeat {each.index}: ")}
        for each in outcome.repeats
    ]
    if repeats:
        session.execute(insert(REPEATS), repeats)
    if outcome.server is not None:
        session.execute(
            insert(SERVER_FACTS), {"trial_id": trial_id, **values_of(SERVER_FACTS, outcome.server, "server.")}
        )
    add_attempt(session, trial_id, attempt, outcome)


def add_attempt(session: Session, trial_id: int, attempt: int, outcome: TrialOutcome) -> None:
    """Add the rows of one attempt: its failure, if there is one, and its timings.

    Raises:
        StorageError: if a number is inf or nan.
    """
    key = {"trial_id": trial_id, "attempt": attempt}
    if outcome.failure is not None:
        values = {**values_of(FAILURES, outcome), **values_of(FAILURES, outcome.failure)}
        session.execute(insert(FAILURES), {**key, **values})
    seconds = to_json_value("timing", outcome.timings).items()
    timings = [{**key, "phase": phase, "position": n, "seconds": s} for n, (phase, s) in enumerate(seconds)]
    if timings:
        session.execute(insert(TIMINGS), timings)


def delete_study(session: Session, name: str) -> None:
    """Delete a study of the tuner's tables with its trials; without one of that name, nothing happens.

    On PostgreSQL the study and its trials are locked first. A transaction that finishes a trial locks that trial
    before it adds rows to it, and one that adds a trial needs the study: either their rows are committed before the
    deletions begin and are deleted, or those transactions find the trial or the study gone. SQLite has one writer.
    """
    study = session.scalar(select(STUDIES.c.id).where(STUDIES.c.name == name).with_for_update())
    if study is None:
        return
    trials = select(TRIALS.c.id).where(TRIALS.c.study_id == study)
    session.execute(trials.with_for_update())
    for part in (TIMINGS, FAILURES, REPEATS, SERVER_FACTS, SYNCS, LESSONS):
        session.execute(delete(part).where(part.c.trial_id.in_(trials)))
    session.execute(delete(TRIALS).where(TRIALS.c.study_id == study))
    session.execute(delete(STUDIES).where(STUDIES.c.id == study))
