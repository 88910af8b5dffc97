"""The part of the service's store that people change: submissions and what they ask of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session, undefer

from storage.columns import to_json_value, values_of
from storage.errors import NotYetAvailable
from storage.service.errors import SubmissionExists, TooMany, WrongState
from storage.service.records import ENDED, RESUMABLE, Page, Request, Submission, SubmissionState
from storage.service.rows import (
    add_event,
    cursor_of,
    find_locked,
    is_active,
    is_after,
    locked,
    move,
    submission_record,
    take_turn,
)
from storage.tables import EventRow, SubmissionRow
from storage.transactions import Transactions, insert_into, reading, writing
from storage.trials import delete_study

CANCELLED_WAITING = "ended on request before it started"
DELETABLE = "only an ended study can be deleted; cancel it first"
WAITING = "waiting submissions"
CANCELLED_AGAIN = "ended on request while it waited"


class SubmissionStore(Transactions):
    """Submissions as people see and change them.

    Raises:
        UnknownSubmission: by every method that changes a submission, if there is none of that id.
    """

    @writing
    def submit(
        self, session: Session, submission: Submission, most_waiting: int | None = None
    ) -> tuple[Submission, bool]:
        """Store a queued submission.

        Args:
            submission: what is asked for. It gets the state QUEUED and the event `queued`; devices, driver, use and
                counts of the argument are not stored.
            most_waiting: how many queued submissions the owner may have, with this one; None: any number.

        Returns:
            The stored submission, and True if it is new. An equal one, with the same owner, settings, kind and `gpus`,
            is returned as it is now, with False: a client may repeat a request whose answer was lost.

        Raises:
            SubmissionExists: if there is another one of that id.
            TooMany: if the owner has `most_waiting` queued ones already.
            StorageError: if a setting is not JSON.
        """
        settings = to_json_value("settings", submission.settings)
        if most_waiting is not None:
            take_turn(session, WAITING, submission.owner)
        created = _insert(session, submission)
        row = find_locked(session, submission.id)
        if row is None:
            raise NotYetAvailable(f"the study {submission.id!r} was deleted just now; submit it again")
        if created:
            _check_waiting(session, submission.owner, most_waiting)
            add_event(session, row, "queued", {"state": row.state}, submission.created_at)
        same = (row.owner, row.kind, row.gpus) == (submission.owner, submission.kind, submission.gpus)
        if not same or row.settings != settings:
            raise SubmissionExists(f"there is another study {submission.id!r}; choose another id")
        return submission_record(row), created

    @reading
    def submission(self, session: Session, id: str) -> Submission | None:
        """Return a submission; None if there is none of that id."""
        query = select(SubmissionRow).where(SubmissionRow.name == id).options(undefer(SubmissionRow.settings))
        row = session.scalar(query)
        return None if row is None else submission_record(row)

    @reading
    def answer(self, session: Session, id: str) -> Mapping[str, Any] | None:
        """Return what a study found that has no trials; None without it."""
        return session.scalar(select(SubmissionRow.answer).where(SubmissionRow.name == id))

    @reading
    def submissions(
        self,
        session: Session,
        *,
        owner: str | None = None,
        readable_by: str | None = None,
        states: Collection[SubmissionState] | None = None,
        text: str | None = None,
        after: str | None = None,
        limit: int = 100,
        with_settings: bool = True,
    ) -> Page:
        """Return a page of submissions, the newest first.

        Args:
            owner: only this owner's.
            readable_by: only this owner's and shared ones.
            states: only those in one of these states.
            text: only those whose id contains it; upper and lower case of ASCII letters are the same.
            after: cursor of an earlier page; None: the first page. A page shows each submission at most once, also
                when others are submitted or deleted between two pages.
            limit: the most submissions of the page, 1 or more.
            with_settings: False leaves the settings empty and does not read them.

        Raises:
            InvalidCursor: if no page has that cursor.
        """
        query = select(SubmissionRow).order_by(SubmissionRow.created_at.desc(), SubmissionRow.id.desc())
        if owner is not None:
            query = query.where(SubmissionRow.owner == owner)
        if readable_by is not None:
            query = query.where(or_(SubmissionRow.owner == readable_by, SubmissionRow.shared))
        if states is not None:
            query = query.where(SubmissionRow.state.in_([state.value for state in states]))
        if text:
            query = query.where(SubmissionRow.name.icontains(text, autoescape=True))
        if after is not None:
            query = query.where(is_after(after))
        if with_settings:
            query = query.options(undefer(SubmissionRow.settings))
        rows = session.scalars(query.limit(limit + 1)).all()
        records = tuple(submission_record(row, with_settings) for row in rows[:limit])
        return Page(records, cursor_of(rows[limit - 1]) if len(rows) > limit else None)

    @reading
    def readable_of(self, session: Session, ids: Collection[str], readable_by: str | None) -> list[str]:
        """Return those of some submissions that exist and are this owner's or shared; None: of any owner."""
        query = select(SubmissionRow.name).where(SubmissionRow.name.in_(ids)).order_by(SubmissionRow.id)
        if readable_by is not None:
            query = query.where(or_(SubmissionRow.owner == readable_by, SubmissionRow.shared))
        return list(session.scalars(query))

    @writing
    def request(self, session: Session, id: str, request: Request, now: datetime) -> Submission:
        """Ask for the end of a submission, or for its devices.

        An active one keeps the request for its driver: `cancel` replaces `stop`, and both replace `yield`. A running or
        concluding one that is to stop is STOPPING from now on. A queued one is CANCELLED at once by `stop` and
        `cancel`, unless it waits for a driver that concludes it, which another `stop` does not change; it has nothing
        to yield. The event is `requested` with the request and the state, or `cancelled`.

        Raises:
            WrongState: if it has ended.
        """
        row = locked(session, id)
        state = SubmissionState(row.state)
        if state in ENDED:
            raise WrongState(id, state, f"it has ended, so {request.value} has no effect; resume it to go on")
        present = None if row.request is None else Request(row.request)
        if is_active(row):
            _ask_driver(session, row, present, request, now)
        elif request is Request.CANCEL or (request is Request.STOP and present is not Request.STOP):
            reason = CANCELLED_AGAIN if row.runs else CANCELLED_WAITING
            move(session, row, SubmissionState.CANCELLED, "cancelled", now, reason)
        return submission_record(row)

    @writing
    def resume(self, session: Session, id: str, now: datetime, most_waiting: int | None = None) -> Submission:
        """Queue a stopped, cancelled or failed submission again; the event is `queued` with `resumed`.

        Raises:
            WrongState: if it is in another state.
            TooMany: as `submit`.
        """
        if most_waiting is not None:
            owner = session.scalar(select(SubmissionRow.owner).where(SubmissionRow.name == id))
            take_turn(session, WAITING, owner or "")
        row = locked(session, id)
        state = SubmissionState(row.state)
        if state not in RESUMABLE:
            allowed = ", ".join(sorted(RESUMABLE))
            raise WrongState(id, state, f"only a submission in one of {allowed} can be resumed")
        row.losses, row.request = 0, None
        move(session, row, SubmissionState.QUEUED, "queued", now, data={"resumed": True})
        _check_waiting(session, row.owner, most_waiting)
        return submission_record(row)

    @writing
    def share(self, session: Session, id: str, shared: bool) -> Submission:
        """Let every token read a submission, or only its owner's."""
        row = locked(session, id)
        row.shared = shared
        return submission_record(row)

    @writing
    def set_watch(self, session: Session, id: str, watch: Mapping[str, Any] | None, now: datetime) -> Submission:
        """Watch deployed servers for an ended submission, or none; the event is `watched` with their number.

        Raises:
            StorageError: if the watch is not JSON.
        """
        row = locked(session, id)
        row.watch = None if watch is None else to_json_value("watch", watch)
        add_event(session, row, "watched", {"servers": 0 if watch is None else len(watch["urls"])}, now)
        return submission_record(row)

    @writing
    def set_priority(self, session: Session, id: str, priority: int, now: datetime) -> Submission:
        """Change the priority; the event of a change is `priority`."""
        row = locked(session, id)
        if row.priority != priority:
            row.priority = priority
            add_event(session, row, "priority", {"priority": priority}, now)
        return submission_record(row)

    @writing
    def delete(self, session: Session, id: str) -> None:
        """Delete an ended submission, its events, and its study with the trials; what it used still counts.

        The caller holds the study's lock and deletes Optuna's study.

        Raises:
            WrongState: if it has not ended.
        """
        row = locked(session, id)
        state = SubmissionState(row.state)
        if state not in ENDED:
            raise WrongState(id, state, DELETABLE)
        session.execute(delete(EventRow).where(EventRow.submission_id == row.id))
        session.delete(row)
        delete_study(session, id)


def _insert(session: Session, new: Submission) -> bool:
    """Insert the row of a new submission; return False if there is one of its id.

    A rival transaction that inserts the same id is waited for.
    """
    asked = (new.id, new.owner, new.settings, new.kind, new.gpus, new.priority, new.created_at, new.queued_at)
    values = values_of(SubmissionRow.__table__, Submission(*asked, shared=new.shared, webhook=new.webhook))
    values["name"] = values.pop("id")
    statement = insert_into(session, SubmissionRow).values(values).on_conflict_do_nothing()
    return session.scalar(statement.returning(SubmissionRow.id)) is not None


def _check_waiting(session: Session, owner: str, most: int | None) -> None:
    """Refuse the change of a transaction after which an owner has more queued submissions than allowed."""
    if most is None:
        return
    own = (SubmissionRow.owner == owner, SubmissionRow.state == SubmissionState.QUEUED.value)
    if (session.scalar(select(func.count()).select_from(SubmissionRow).where(*own)) or 0) > most:
        raise TooMany(f"{most} studies of {owner} wait already", "wait until some have ended, or cancel some")


def _ask_driver(session: Session, row: SubmissionRow, present: Request | None, request: Request, now: datetime) -> None:
    """Set the request of an active submission, unless it has a stronger one or the same."""
    strength = (None, Request.YIELD, Request.STOP, Request.CANCEL)
    if strength.index(request) <= strength.index(present):
        return
    row.request = request.value
    if request is Request.STOP:
        row.state = SubmissionState.STOPPING.value
    add_event(session, row, "requested", {"request": request.value, "state": row.state}, now)
