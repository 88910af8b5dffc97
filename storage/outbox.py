"""The trials that are logged to MLflow, and the ids of their runs."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import func, select

from records.trials import TrialRecord
from storage.answers.store import AnswersStore
from storage.errors import StorageError
from storage.tables.lookup import existing_study, finished_trial_ids, read_trials, trial_text
from storage.tables.models import SyncRow, TrialRow


class Outbox(AnswersStore):
    """The part of the store that tracks which trials MLflow contains."""

    def unsynced(self, study: str | None = None, limit: int = 100) -> list[TrialRecord]:
        """Return at most `limit` finished trials that are not marked as logged to MLflow.

        Args:
            study: the study; None returns trials of all studies.
            limit: the most trials to return.
        """
        with self._reading() as session:
            query = select(TrialRow).where(TrialRow.ended_at.is_not(None))
            query = query.where(~select(SyncRow).where(SyncRow.trial_id == TrialRow.id).exists())
            if study is not None:
                query = query.where(TrialRow.study_id == existing_study(session, study).id)
            return read_trials(session, query.limit(limit))

    def logged_counts(self, study: str) -> tuple[int, int]:
        """Return how many of a study's finished trials are marked as synced, and how many are finished."""
        with self._reading() as session:
            finished = select(func.count()).select_from(TrialRow).where(TrialRow.ended_at.is_not(None))
            finished = finished.where(TrialRow.study_id == existing_study(session, study).id)
            synced = finished.join(SyncRow, SyncRow.trial_id == TrialRow.id)
            return session.scalar(synced) or 0, session.scalar(finished) or 0

    def mark_synced(self, study: str, number: int, round: int, run_id: str) -> None:
        """Mark a finished trial as logged to MLflow. Marking it again with the same run changes nothing.

        Args:
            study: the trial's study.
            number: the trial's number.
            round: the trial's round, 0 for the trial itself.
            run_id: the trial's run in MLflow.

        Raises:
            StorageError: if there is no such trial, it is pending, or it is marked with another run.
        """
        with self._writing() as session:
            trial_id = finished_trial_ids(session, study).get((number, round))
            if trial_id is None:
                raise StorageError(f"{trial_text(study, number, round)} is not finished, so MLflow cannot contain it")
            row = session.get(SyncRow, trial_id)
            if row is None:
                session.add(SyncRow(trial_id=trial_id, run_id=run_id, synced_at=datetime.now(UTC)))
            elif row.run_id != run_id:
                raise StorageError(f"{trial_text(study, number, round)} is already synced as run {row.run_id}")

    def synced_run(self, study: str, number: int, round: int = 0) -> str | None:
        """Return the id of the MLflow run that a trial is marked with; None if it is not marked."""
        with self._reading() as session:
            query = select(SyncRow.run_id).join(TrialRow, TrialRow.id == SyncRow.trial_id)
            trial = (TrialRow.number == number, TrialRow.round == round)
            return session.scalar(query.where(TrialRow.study_id == existing_study(session, study).id, *trial))

    def study_run(self, study: str) -> str | None:
        """Return the id of the study's parent run in MLflow; None if it has none yet."""
        with self._reading() as session:
            return existing_study(session, study).mlflow_run

    def set_study_run(self, study: str, run_id: str) -> None:
        """Store the id of the study's parent run in MLflow; it replaces an earlier one."""
        with self._writing() as session:
            existing_study(session, study, lock=True).mlflow_run = run_id
