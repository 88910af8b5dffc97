"""The store: all reads and writes of the tuner's tables, in terms of `records.trials`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from records.answers import AnswersKey, AnswersRecord
from records.lessons import Lesson, Site
from records.trials import FailedAttempt, Provenance, StudyRecord, TrialKind, TrialOutcome, TrialRecord, Verdict
from storage import database
from storage.columns import NAME_LENGTH, record_of, to_json_value, values_of
from storage.errors import StorageError
from storage.tables import ANSWERS, FAILURES, LESSONS, REPEATS, STUDIES, SYNCS, TIMINGS, TRIALS
from storage.transactions import Transactions, first_seen, is_repeated, put, reading, writing
from storage.trials import (
    add_attempt,
    add_parts,
    existing_study,
    finished_trial_ids,
    has_attempt,
    is_trial,
    pending_trial,
    read_failed_attempts,
    read_trials,
    require_same_provenance,
    trial_text,
    verdict_values,
)
from storage.waiting import NO_WAIT, DatabaseWait


def open_store(url: str, wait: DatabaseWait | None = None) -> Store:
    """Open a database, create or migrate the tuner's tables in it, and return the store.

    Args:
        url: a path such as `study.db`, which becomes an SQLite file, or the URL of an SQLite or PostgreSQL database.
        wait: how the store waits for a database that stops answering later; None: it does not wait.

    Raises:
        StorageError: if the kind of database is not supported, the database cannot be reached or written, or a newer
            version of the tuner wrote it. The message is one line, without the password.
    """
    wait = wait or NO_WAIT
    return Store(database.open_engine(url, wait.busy_s), wait)


class Store(Transactions):
    """Studies, trials and answers in one database; threads and processes can share the database.

    Every method is one transaction, and either all of its changes happen or none. A store with a `DatabaseWait` repeats
    it while the database does not answer; a change whose acknowledgement was lost happens once. A trial is named by its
    study, its number and its round, 0 for the trial itself.

    Raises:
        StorageError: by every method, if the database fails, and if the named study does not exist, unless the method
            returns None for that. Methods list further reasons.
    """

    @writing
    def create_study(self, session: Session, record: StudyRecord) -> None:
        """Store a new study.

        Raises:
            StorageError: if the name is taken, or is not 1 to 512 printable characters, or if a value is not JSON.
        """
        if not 1 <= len(record.name) <= NAME_LENGTH or not record.name.isprintable():
            raise StorageError(f"a study's name has 1 to {NAME_LENGTH} printable characters, not {record.name!r:.60}")
        if is_repeated(session) and _studies(session, record.name) == [record]:
            return
        try:
            session.execute(insert(STUDIES).values(values_of(STUDIES, record)))
        except IntegrityError:
            raise StorageError(f"there is already a study called {record.name!r}; choose another name") from None

    @reading
    def study(self, session: Session, name: str) -> StudyRecord | None:
        """Return the study of that name; None if there is none."""
        return next(iter(_studies(session, name)), None)

    @reading
    def studies(self, session: Session) -> list[StudyRecord]:
        """Return all studies, in the order in which they were created."""
        return _studies(session)

    @reading
    def progress(self, session: Session, names: Sequence[str]) -> dict[str, tuple[int, int, int, float | None]]:
        """Return how far studies are, by name; a study that does not exist yet is left out.

        The four numbers are the finished trials of the search, the finished measurements in rounds, the trials of the
        search without a benchmark (they failed), and the best score of the search (None without one).
        """
        ended, searched = TRIALS.c.ended_at.is_not(None), TRIALS.c.round == 0
        failed = ~select(REPEATS.c.trial_id).where(REPEATS.c.trial_id == TRIALS.c.id).exists()
        counts = (
            func.count().filter(ended, searched),
            func.count().filter(ended, ~searched),
            func.count().filter(ended, searched, failed),
            func.max(TRIALS.c.score).filter(searched),
        )
        query = select(STUDIES.c.id, STUDIES.c.name).where(STUDIES.c.name.in_(names))
        ids = {row.id: row.name for row in session.execute(query)}
        found: dict[str, tuple[int, int, int, float | None]] = dict.fromkeys(ids.values(), (0, 0, 0, None))
        # Joined with the studies, PostgreSQL reads every trial once there are many names.
        of_trials = select(TRIALS.c.study_id, *counts).where(TRIALS.c.study_id.in_(ids))
        for id, trials, rounds, without, score in session.execute(of_trials.group_by(TRIALS.c.study_id)):
            found[ids[id]] = (trials, rounds, without, score)
        return found

    @reading
    def scores(self, session: Session, names: Sequence[str], most: int) -> dict[str, list[float | None]]:
        """Return the scores of the search of studies in the order of the trials; None: a trial without one.

        A study that does not exist is left out. Only trials with a number below `most` count.
        """
        query = (
            select(STUDIES.c.name, TRIALS.c.score)
            .join(TRIALS, TRIALS.c.study_id == STUDIES.c.id)
            .where(STUDIES.c.name.in_(names), TRIALS.c.round == 0)
            .where(TRIALS.c.number < most, TRIALS.c.ended_at.is_not(None))
            .order_by(STUDIES.c.id, TRIALS.c.number)
        )
        found: dict[str, list[float | None]] = {}
        for name, score in session.execute(query):
            found.setdefault(name, []).append(score)
        return found

    @writing
    def update_study(
        self,
        session: Session,
        name: str,
        facts: Mapping[str, Any] | None = None,
        conclusion: Mapping[str, Any] | None = None,
    ) -> None:
        """Change a study's facts and conclusion.

        Args:
            name: the study.
            facts: each top-level key replaces the old value of that key; other keys stay.
            conclusion: the new conclusion; None keeps the old one.

        Raises:
            StorageError: if a value is not JSON.
        """
        row = existing_study(session, name, STUDIES.c.facts, lock=True)
        values = {"facts": {**row.facts, **to_json_value("facts", facts or {})}}
        if conclusion is not None:
            values["conclusion"] = to_json_value("conclusion", conclusion)
        session.execute(update(STUDIES).where(STUDIES.c.id == row.id).values(values))

    @writing
    def add_trial(self, session: Session, record: TrialRecord) -> None:
        """Store a new pending trial.

        Raises:
            StorageError: if the record has an outcome or a verdict, or if its number and round exist already.
        """
        key = (record.study, record.number, record.round)
        if record.outcome is not None or record.verdict is not None:
            raise StorageError(f"{trial_text(*key)} has an outcome already; add a trial before it runs")
        if is_repeated(session) and read_trials(session, is_trial(session, *key)) == [record]:
            return
        study = existing_study(session, record.study, STUDIES.c.provenance)
        values = {**values_of(TRIALS, record), "study_id": study.id, "provenance": study.provenance}
        try:
            session.execute(insert(TRIALS).values(values))
        except IntegrityError:
            raise StorageError(f"{trial_text(*key)} exists already; read it with Store.trial") from None

    @writing
    def begin_attempt(self, session: Session, study: str, number: int, round: int = 0) -> int:
        """Count one more attempt at a pending trial and return its number, from 1.

        Raises:
            StorageError: if there is no such trial, or it is finished.
        """
        row = pending_trial(session, study, number, round)
        attempt: int = first_seen(session, "attempts", row.attempts) + 1
        session.execute(update(TRIALS).where(TRIALS.c.id == row.id).values(attempts=attempt))
        return attempt

    @writing
    def finish_trial(
        self, session: Session, study: str, number: int, round: int, outcome: TrialOutcome, verdict: Verdict | None
    ) -> None:
        """Store the outcome and the verdict of a pending trial.

        Args:
            study, number, round: the trial.
            outcome: the result of the trial's last attempt, with a repeat or a failure, unless it was cut short.
            verdict: its evaluation; None for a failure.

        Raises:
            StorageError: if there is no such trial, it is finished, the outcome has another provenance than the study
                or neither a repeat nor a failure nor a cut, or a number is inf or nan.
        """
        trial = trial_text(study, number, round)
        if outcome.failure is None and outcome.cut is None and not outcome.repeats:
            raise StorageError(f"the outcome of {trial} holds neither a repeat nor a failure nor a cut")
        if is_repeated(session) and has_attempt(session, TRIALS, outcome, is_trial(session, study, number, round)):
            return
        row = pending_trial(session, study, number, round)
        require_same_provenance(row, outcome, trial)
        for table in (FAILURES, TIMINGS):
            session.execute(delete(table).where(table.c.trial_id == row.id, table.c.attempt == row.attempts))
        values = {**values_of(TRIALS, outcome), **verdict_values(verdict)}
        session.execute(update(TRIALS).where(TRIALS.c.id == row.id).values(values))
        add_parts(session, row.id, row.attempts, outcome)

    @writing
    def record_failed_attempt(
        self, session: Session, study: str, number: int, round: int, attempt: int, outcome: TrialOutcome
    ) -> None:
        """Store a failed attempt that will be retried; the trial stays pending.

        Args:
            study, number, round: the trial.
            attempt: the attempt, from 1, see `begin_attempt`.
            outcome: the result of the attempt, with a failure.

        Raises:
            StorageError: if there is no such trial, it is finished, the outcome has no failure or another provenance
                than the study, or the attempt did not begin or is stored already.
        """
        trial = trial_text(study, number, round)
        if outcome.failure is None:
            raise StorageError(f"attempt {attempt} of {trial} did not fail; finish the trial instead")
        row = pending_trial(session, study, number, round)
        require_same_provenance(row, outcome, trial)
        if not 1 <= attempt <= row.attempts:
            raise StorageError(f"attempt {attempt} of {trial} has not begun: the last one is {row.attempts}")
        stored = (FAILURES.c.trial_id == row.id, FAILURES.c.attempt == attempt)
        if is_repeated(session) and has_attempt(session, FAILURES, outcome, *stored):
            return
        try:
            add_attempt(session, row.id, attempt, outcome)
        except IntegrityError:
            raise StorageError(f"attempt {attempt} of {trial} is stored already") from None

    @reading
    def trials(
        self,
        session: Session,
        study: str,
        kind: TrialKind | None = None,
        finished: bool | None = None,
        after: int = -1,
        most: int | None = None,
    ) -> list[TrialRecord]:
        """Return the trials of a study by number and round, each with its outcome, in a constant number of statements.

        Args:
            study: name of the study.
            kind: return only trials of this kind; None returns all.
            finished: True returns trials with an outcome, False pending ones, None all.
            after: return only trials with a larger number.
            most: return at most so many numbers, the smallest first, each with all its rounds; None returns all.
        """
        conditions = [TRIALS.c.study_id == existing_study(session, study).id]
        if after >= 0:
            conditions.append(TRIALS.c.number > after)
        if most is not None:
            numbers = select(TRIALS.c.number).where(*conditions).distinct().order_by(TRIALS.c.number).limit(most)
            conditions.append(TRIALS.c.number.in_(numbers))
        if kind is not None:
            conditions.append(TRIALS.c.kind == kind.value)
        if finished is not None:
            conditions.append(TRIALS.c.ended_at.is_not(None) if finished else TRIALS.c.ended_at.is_(None))
        return read_trials(session, *conditions)

    @reading
    def trial(self, session: Session, study: str, number: int, round: int = 0) -> TrialRecord | None:
        """Return a trial with its outcome; None if the study has no trial of that number and round."""
        return next(iter(read_trials(session, is_trial(session, study, number, round))), None)

    @reading
    def failed_attempts(self, session: Session, study: str) -> list[FailedAttempt]:
        """Return the failed attempts that were or will be retried, by number, round and attempt."""
        own = TRIALS.c.study_id == existing_study(session, study).id
        retried = or_(TRIALS.c.ended_at.is_(None), FAILURES.c.attempt != TRIALS.c.attempts)
        return read_failed_attempts(session, own, retried)

    @writing
    def set_verdicts(self, session: Session, study: str, verdicts: Mapping[tuple[int, int], Verdict]) -> None:
        """Replace the verdicts of finished trials, by number and round.

        Raises:
            StorageError: if one of the trials does not exist or is pending.
        """
        ids = finished_trial_ids(session, study)
        missing = [key for key in verdicts if key not in ids]
        if missing:
            raise StorageError(f"{trial_text(study, *missing[0])} has no outcome for a verdict")
        changes = [{"of_trial": ids[key], **verdict_values(verdict)} for key, verdict in verdicts.items()]
        if changes:
            session.execute(update(TRIALS).where(TRIALS.c.id == bindparam("of_trial")), changes)

    @reading
    def unsynced(self, session: Session, study: str | None = None, limit: int = 100) -> list[TrialRecord]:
        """Return at most `limit` finished trials that are not marked as logged to MLflow; without `study`, of all."""
        conditions = [
            TRIALS.c.ended_at.is_not(None),
            ~select(SYNCS.c.trial_id).where(SYNCS.c.trial_id == TRIALS.c.id).exists(),
        ]
        if study is not None:
            conditions.append(TRIALS.c.study_id == existing_study(session, study).id)
        return read_trials(session, *conditions, limit=limit)

    @reading
    def logged_counts(self, session: Session, study: str) -> tuple[int, int]:
        """Return how many of a study's finished trials are marked as synced, and how many are finished."""
        finished = select(func.count()).select_from(TRIALS).where(TRIALS.c.ended_at.is_not(None))
        finished = finished.where(TRIALS.c.study_id == existing_study(session, study).id)
        synced = finished.join(SYNCS, SYNCS.c.trial_id == TRIALS.c.id)
        return session.scalar(synced) or 0, session.scalar(finished) or 0

    @writing
    def mark_synced(self, session: Session, study: str, number: int, round: int, run_id: str) -> None:
        """Mark a finished trial as logged to MLflow in a run. Marking it again with the same run changes nothing.

        Raises:
            StorageError: if there is no such trial, it is pending, or it is marked with another run.
        """
        trial_id = finished_trial_ids(session, study).get((number, round))
        if trial_id is None:
            raise StorageError(f"{trial_text(study, number, round)} is not finished, so MLflow cannot contain it")
        present = session.scalar(select(SYNCS.c.run_id).where(SYNCS.c.trial_id == trial_id))
        if present is None:
            session.execute(insert(SYNCS).values(trial_id=trial_id, run_id=run_id, synced_at=datetime.now(UTC)))
        elif present != run_id:
            raise StorageError(f"{trial_text(study, number, round)} is already synced as run {present}")

    @writing
    def add_lesson(self, session: Session, study: str, number: int, round: int, lesson: Lesson) -> None:
        """Store what a finished trial tells about the predictor of its host, in place of an earlier lesson of it.

        Raises:
            StorageError: if there is no such trial, it is not finished or simulated, or a number is inf or nan.
        """
        trial_id = finished_trial_ids(session, study).get((number, round))
        provenance = existing_study(session, study, STUDIES.c.provenance).provenance
        if trial_id is None or provenance != Provenance.MEASURED:
            raise StorageError(f"{trial_text(study, number, round)} is not a measured one: nothing is learned from it")
        values = {**values_of(LESSONS, lesson.site), **values_of(LESSONS, lesson)}
        put(session, LESSONS, "trial_id", {"trial_id": trial_id, **values})

    @reading
    def lessons_of(self, session: Session, study: str) -> dict[tuple[int, int], Lesson]:
        """Return the lessons of a study by the number and the round of their trials."""
        columns = select(LESSONS, TRIALS.c.number, TRIALS.c.round).join(TRIALS, LESSONS.c.trial_id == TRIALS.c.id)
        rows = session.execute(columns.where(TRIALS.c.study_id == existing_study(session, study).id))
        return {(row.number, row.round): _lesson(row) for row in rows}

    @reading
    def lessons(
        self,
        session: Session,
        hosts: Sequence[str],
        card: str,
        version: str,
        predictor: str,
        installation: str | None = None,
        before: datetime | None = None,
        most: int = 500,
    ) -> list[Lesson]:
        """Return the latest lessons of hosts, the latest last.

        Args:
            hosts, card, version, predictor, installation: see `Site`; None: of any installation.
            before: only those of trials that had ended by then.
            most: of them.
        """
        query = select(LESSONS).join(TRIALS, TRIALS.c.id == LESSONS.c.trial_id).where(LESSONS.c.host.in_(hosts))
        same = (LESSONS.c.card == card, LESSONS.c.version == version, LESSONS.c.predictor == predictor)
        if installation is not None:
            query = query.where(LESSONS.c.installation == installation)
        if before is not None:
            query = query.where(TRIALS.c.ended_at < before)
        latest = query.where(*same).order_by(TRIALS.c.ended_at.desc(), TRIALS.c.id.desc()).limit(most)
        rows = list(session.execute(latest))
        return [_lesson(row) for row in reversed(rows)]

    @reading
    def answers(self, session: Session, key: AnswersKey) -> AnswersRecord | None:
        """Return what a server answered; None if it was not asked."""
        row = session.execute(select(ANSWERS).where(ANSWERS.c.digest == key.digest)).first()
        return None if row is None else record_of(AnswersRecord, row, key=key)

    @writing
    def add_answers(self, session: Session, record: AnswersRecord) -> None:
        """Store what a server answered, in place of an earlier record of the same key.

        Raises:
            StorageError: if a value is not JSON.
        """
        values = {**values_of(ANSWERS, record.key), **values_of(ANSWERS, record)}
        put(session, ANSWERS, "digest", {"digest": record.key.digest, **values})


def _studies(session: Session, name: str | None = None) -> list[StudyRecord]:
    """Return all studies, or the one of a name, in the order in which they were created."""
    query = select(STUDIES).order_by(STUDIES.c.id)
    rows = session.execute(query if name is None else query.where(STUDIES.c.name == name))
    return [record_of(StudyRecord, row) for row in rows]


def _lesson(row: Any) -> Lesson:
    return record_of(Lesson, row, site=record_of(Site, row))
