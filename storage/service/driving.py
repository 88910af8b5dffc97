"""The part of the service's store for drivers: heartbeats, events, and the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from storage.columns import KEYWORD_LENGTH, check_name, to_json_value
from storage.errors import StorageError
from storage.service.records import ENDED, Driver, Request, Submission, SubmissionState
from storage.service.rows import (
    add_event,
    count_use,
    end_run,
    find_locked,
    locked,
    move,
    owned,
    submission_record,
    take_devices,
)
from storage.tables import EventRow, SubmissionRow
from storage.transactions import Transactions, is_repeated, writing

ENDINGS = ENDED | {SubmissionState.QUEUED}
"""States in which a driver leaves its submission."""


class DrivingStore(Transactions):
    """What a driver writes. Methods that have the driver as an argument change nothing for another one.

    Raises:
        NotYours: by those methods, if the submission has another driver or none: the driver ends and writes nothing
            more.
    """

    @writing
    def beat(self, session: Session, id: str, driver: Driver, now: datetime) -> Request | None:
        """Store a heartbeat and the devices used until now, and return what the driver is asked to do."""
        row = owned(session, id, driver)
        count_use(row, now)
        row.heartbeat_at = now
        return None if row.request is None else Request(row.request)

    @writing
    def event(self, session: Session, id: str, kind: str, data: Mapping[str, Any], now: datetime) -> int:
        """Add an event and return its number: one more than the last event's of this submission.

        The submission's row is locked from the number until the commit. Events of one submission therefore become
        visible in the order of their numbers, and a number that was returned or read has all smaller ones before it.

        Raises:
            UnknownSubmission: if there is none of that id.
            StorageError: if the kind is not 1 to 64 printable characters, or the data are not JSON.
        """
        check_name("a kind of event", kind, KEYWORD_LENGTH)
        row = locked(session, id)
        if is_repeated(session):
            same = (EventRow.submission_id == row.id, EventRow.at == now, EventRow.kind == kind)
            for stored in session.scalars(select(EventRow).where(*same)):
                if stored.data == to_json_value("data", data):
                    return stored.number
        return add_event(session, row, kind, data, now)

    @writing
    def concluding(self, session: Session, id: str, driver: Driver, now: datetime) -> Submission:
        """Say that the search is over: a running submission is CONCLUDING, a STOPPING one stays so."""
        row = owned(session, id, driver)
        if row.state == SubmissionState.RUNNING:
            move(session, row, SubmissionState.CONCLUDING, "concluding", now)
        return submission_record(row)

    @writing
    def measured_all(self, session: Session, id: str, driver: Driver, now: datetime) -> Submission:
        """Take the devices back from a run that measures nothing more; its driver goes on, and the event says so."""
        row = owned(session, id, driver)
        if row.granted:
            add_event(session, row, "measured", {"state": row.state}, now)
        take_devices(session, row, now)
        return submission_record(row)

    @writing
    def end(
        self,
        session: Session,
        id: str,
        driver: Driver,
        state: SubmissionState,
        reason: str | None,
        culprit: str | None,
        now: datetime,
    ) -> Submission:
        """End the driver's run and record its use; the event has the state's name in lower case.

        A driver that yields leaves its submission QUEUED. If a person asked for its end meanwhile, that is not lost: to
        be cancelled, it is CANCELLED; to be stopped, it is queued with that request, for a driver that concludes it.

        Args:
            id: the submission.
            driver: the driver.
            state: an ended state, or QUEUED.
            reason: why, for people; None if there is nothing to say.
            culprit: of a failed one; None for the others.
            now: until when its use counts.

        Raises:
            StorageError: if a driver cannot leave it in that state.
        """
        if state not in ENDINGS:
            raise StorageError(f"a driver cannot leave the submission {id!r} {state.value}; end it, or queue it again")
        left = find_locked(session, id) if is_repeated(session) else None
        if left is not None and left.driver != driver and now in (left.ended_at, left.queued_at):
            return submission_record(left)
        row = owned(session, id, driver)
        end_run(session, row, now)
        if state is SubmissionState.QUEUED:
            if row.request == Request.CANCEL:
                state, reason = SubmissionState.CANCELLED, "ended on request while it gave its devices back"
            elif row.request == Request.YIELD:
                row.request = None
        move(session, row, state, state.value.lower(), now, reason, culprit)
        return submission_record(row)

    @writing
    def progressed(self, session: Session, id: str) -> None:
        """Say that a trial has finished: earlier losses of drivers count no more."""
        change = update(SubmissionRow).where(SubmissionRow.name == id, SubmissionRow.losses != 0).values(losses=0)
        session.execute(change)
