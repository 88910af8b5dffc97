"""Rows of submissions: the records of rows, locked rows, their events, and the devices that a run used."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, insert, literal, select, tuple_
from sqlalchemy.orm import Session

from storage.columns import UtcDateTime, record_of, to_json_value, values_of
from storage.service.errors import InvalidCursor, NotYours, UnknownSubmission
from storage.service.records import ACTIVE, ENDED, Driver, Submission, SubmissionState, Use
from storage.tables import MESSAGES, USES, EventRow, SubmissionRow
from storage.transactions import lock_words

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
LARGEST = 2**31 - 1
"""The largest number of a submission's row or of an event within it; PostgreSQL refuses larger ones."""


def take_turn(session: Session, what: str, owner: str) -> None:
    """Let transactions that count what an owner has, and then add to it, run one after another.

    On SQLite, transactions that write do so anyway. Take the turn before any row is locked, so that no two transactions
    wait for each other.
    """
    if session.get_bind().dialect.name == "postgresql":
        lock_words(session, f"{what} of {owner}")


def submission_record(row: SubmissionRow, with_settings: bool = True) -> Submission:
    """Return the submission of a row; without its settings, they are empty and are not read."""
    settings = row.settings if with_settings else {}
    return record_of(Submission, row, id=row.name, settings=settings)


def find_locked(session: Session, id: str) -> SubmissionRow | None:
    """Return the row of a submission, locked against other transactions until this one ends; None if there is none."""
    return session.scalar(select(SubmissionRow).where(SubmissionRow.name == id).with_for_update())


def locked(session: Session, id: str) -> SubmissionRow:
    """Return the row of a submission, as `find_locked`.

    Raises:
        UnknownSubmission: if there is none.
    """
    row = find_locked(session, id)
    if row is None:
        raise UnknownSubmission(f"there is no study {id!r}; list the studies to see their ids")
    return row


def is_active(row: SubmissionRow) -> bool:
    return row.state in ACTIVE


def owned(session: Session, id: str, driver: Driver) -> SubmissionRow:
    """Return the locked row of an active submission that this driver runs.

    Raises:
        NotYours: if there is no such submission, it is not active, or it has another driver.
    """
    row = find_locked(session, id)
    if row is None:
        raise NotYours(f"the submission {id!r} was deleted; this driver ends")
    if not is_active(row) or row.driver != driver:
        raise NotYours(f"the submission {id!r} is {row.state} and not of this driver any more; this driver ends")
    return row


def add_event(session: Session, row: SubmissionRow, kind: str, data: Mapping[str, Any], now: datetime) -> int:
    """Add an event to a locked submission and return its number.

    Raises:
        StorageError: if the data are not JSON.
    """
    row.events += 1
    stored = to_json_value("data", data)
    session.add(EventRow(submission_id=row.id, number=row.events, at=now, kind=kind, data=stored))
    return row.events


def move(
    session: Session,
    row: SubmissionRow,
    state: SubmissionState,
    kind: str,
    now: datetime,
    reason: str | None = None,
    culprit: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Move a locked submission to a state and add the event.

    An ended submission has no request. The event's data have `state`, and `reason` and `culprit` where there are any.
    """
    row.state, row.reason, row.culprit = state.value, reason, culprit
    if state in ENDED:
        row.ended_at, row.request = now, None
    if state is SubmissionState.QUEUED:
        row.queued_at, row.ended_at = now, None
    about = {"state": state.value, "reason": reason, "culprit": culprit}
    known = {key: value for key, value in about.items() if value is not None}
    number = add_event(session, row, kind, {**known, **(data or {})}, now)
    if state in ENDED:
        add_message(session, row, f"end_{row.id}_{number}", now, now)


def add_message(
    session: Session, row: SubmissionRow, key: str, ended: datetime | None, now: datetime, drift: str | None = None
) -> None:
    """Keep a message about a submission, in the transaction of what it says, if it has a webhook.

    `ended` is when the submission ended, `drift` how its deployed servers have drifted; None: the message is about its
    end.
    """
    if row.webhook is None:
        return
    facts = {"id": row.name, "owner": row.owner, "kind": row.kind, "gpu_seconds": row.gpu_seconds}
    facts |= {"state": row.state, "reason": row.reason, "culprit": row.culprit}
    times = {"created_at": row.created_at.isoformat(), "ended_at": None if ended is None else ended.isoformat()}
    more = {} if drift is None else {"drift": drift, "found_at": now.isoformat()}
    message = {"webhook": row.webhook, "key": key, "data": {**facts, **times, **more}, "created_at": now}
    session.execute(insert(MESSAGES).values(**message, next_at=now, attempts=0))


def count_use(row: SubmissionRow, now: datetime) -> None:
    """Add the device-seconds since they were counted last. A clock that is behind adds nothing."""
    if row.counted_at is not None and now > row.counted_at:
        row.gpu_seconds += len(row.granted) * (now - row.counted_at).total_seconds()
        row.counted_at = now


def take_devices(session: Session, row: SubmissionRow, now: datetime) -> None:
    """Take the devices from an active submission, if it has any, and record their use."""
    count_use(row, now)
    began, ended = row.run_began_at, row.counted_at
    if row.granted and began is not None and ended is not None:
        used = len(row.granted) * (ended - began).total_seconds()
        use = Use(row.owner, row.name, row.kind, began, ended, used)
        session.execute(insert(USES).values(values_of(USES, use)))
    row.granted = []


def end_run(session: Session, row: SubmissionRow, now: datetime) -> None:
    """Take driver and devices from an active submission."""
    take_devices(session, row, now)
    row.run_began_at, row.counted_at = None, None
    row.driver = None


def cursor_of(row: SubmissionRow) -> str:
    """Return the cursor of the page after a row."""
    place = f"{(row.created_at - _EPOCH) // _MICROSECOND}.{row.id}"
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def is_after(cursor: str) -> ColumnElement[bool]:
    """Return the condition for rows after a cursor: older ones, and of those of one time the earlier rows.

    Raises:
        InvalidCursor: if no page has such a cursor.
    """
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        time, _, row = text.partition(".")
        created_at, number = _EPOCH + int(time) * _MICROSECOND, int(row)
        if number > LARGEST:
            raise ValueError(number)
    except (binascii.Error, ValueError, OverflowError):
        raise InvalidCursor(f"{cursor!r:.60} is not the cursor of a page; begin with the first page") from None
    return tuple_(SubmissionRow.created_at, SubmissionRow.id) < tuple_(literal(created_at, UtcDateTime), number)
