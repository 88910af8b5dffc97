"""Delete a study with everything that belongs to it."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from storage.tables.models import FailureRow, RepeatRow, ServerFactsRow, StudyRow, SyncRow, TimingRow, TrialRow

PARTS = (TimingRow, FailureRow, RepeatRow, ServerFactsRow, SyncRow)
"""The tables whose rows belong to a trial."""


def delete_study(session: Session, name: str) -> None:
    """Delete a study of the tuner's tables with its trials; without one of that name, nothing happens.

    On PostgreSQL the study and its trials are locked first. A transaction that finishes a trial locks that trial
    before it adds rows to it, and one that adds a trial needs the study: either their rows are committed before the
    deletions begin and are deleted, or those transactions find the trial or the study gone. SQLite has one writer.
    """
    study = session.scalar(select(StudyRow.id).where(StudyRow.name == name).with_for_update())
    if study is None:
        return
    session.execute(select(TrialRow.id).where(TrialRow.study_id == study).with_for_update())
    trials = select(TrialRow.id).where(TrialRow.study_id == study)
    for part in PARTS:
        session.execute(delete(part).where(part.trial_id.in_(trials)))
    session.execute(delete(TrialRow).where(TrialRow.study_id == study))
    session.execute(delete(StudyRow).where(StudyRow.id == study))
