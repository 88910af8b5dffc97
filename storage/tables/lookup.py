"""Rows that the store's methods look up, and the errors for rows that are missing or in the wrong state."""

from __future__ import annotations

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, joinedload, subqueryload

from records.trials import TrialOutcome, TrialRecord
from storage.errors import StorageError
from storage.tables import mapping
from storage.tables.models import StudyRow, TrialRow

TRIAL_ORDER = (TrialRow.study_id, TrialRow.number, TrialRow.round)


def trial_text(study: str, number: int, round: int) -> str:
    """Return a trial for an error message: `trial 12 (round 2) of study 's'`."""
    suffix = f" (round {round})" if round else ""
    return f"trial {number}{suffix} of study {study!r}"


def existing_study(session: Session, name: str, lock: bool = False) -> StudyRow:
    """Return a study's row; `lock` keeps other transactions from changing it until this one ends.

    Raises:
        StorageError: if there is no study of that name; the message lists the studies of the database.
    """
    query = select(StudyRow).where(StudyRow.name == name)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        names = session.scalars(select(StudyRow.name).order_by(StudyRow.id)).all()
        present = f"the database has: {', '.join(names)}" if names else "the database has no study yet"
        raise StorageError(f"no study is called {name!r}; {present}")
    return row


def trial_query(session: Session, study: str, number: int, round: int) -> Select[TrialRow]:
    """Return the query of one trial.

    Raises:
        StorageError: if there is no such study.
    """
    study_id = existing_study(session, study).id
    return select(TrialRow).where(TrialRow.study_id == study_id, TrialRow.number == number, TrialRow.round == round)


def pending_trial(session: Session, study: str, number: int, round: int) -> TrialRow:
    """Return the row of a pending trial, locked against other transactions until this one ends.

    Raises:
        StorageError: if there is no such trial, or it is finished.
    """
    row = session.scalar(trial_query(session, study, number, round).with_for_update())
    if row is None:
        raise StorageError(f"there is no {trial_text(study, number, round)}; add it first")
    if row.ended_at is not None:
        raise StorageError(f"{trial_text(study, number, round)} is finished already")
    return row


def finished_trial_ids(session: Session, study: str) -> dict[tuple[int, int], int]:
    """Map (number, round) of each finished trial of a study to the primary key of its row."""
    query = select(TrialRow.number, TrialRow.round, TrialRow.id).where(
        TrialRow.study_id == existing_study(session, study).id, TrialRow.ended_at.is_not(None)
    )
    return {(number, round): trial_id for number, round, trial_id in session.execute(query)}


def require_same_provenance(row: TrialRow, outcome: TrialOutcome, trial: str) -> None:
    """Check that an outcome has the provenance of its study.

    Raises:
        StorageError: if it has the other one.
    """
    if outcome.provenance.value != row.provenance:
        raise StorageError(
            f"{trial} belongs to a {row.provenance} study, but its outcome is {outcome.provenance.value}: "
            "a study holds either measured or simulated trials; use another study"
        )


def read_trials(session: Session, query: Select[TrialRow]) -> list[TrialRecord]:
    """Return the trials of a query by study, number and round, each with the rows that belong to it."""
    parts = (TrialRow.repeats, TrialRow.failures, TrialRow.timings)
    query = query.order_by(*TRIAL_ORDER).options(
        # The study's premise and conclusion are large, and would be read once for each trial.
        joinedload(TrialRow.study).load_only(StudyRow.name),
        joinedload(TrialRow.facts),
        *(subqueryload(part) for part in parts),
    )
    return [mapping.trial_record(row, row.study.name) for row in session.scalars(query)]
