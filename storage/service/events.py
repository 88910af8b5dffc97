"""The part of the service's store for those who watch: events, the queue in numbers, and messages to webhooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, func, select, text, update
from sqlalchemy.orm import Session

from storage.columns import record_of, to_json_value
from storage.service.records import ACTIVE, Event, EventPosition, Submission, SubmissionState
from storage.service.rows import LARGEST, add_event, add_message, find_locked, submission_record
from storage.service.watching.records import Figures, Message, Waiting
from storage.tables import MESSAGES, EventRow, SubmissionRow
from storage.transactions import Transactions, reading, writing

START_WINDOW = 100_000
"""Rows before the newest one among which a new reader expects transactions that have not committed yet."""


class WatchingStore(Transactions):
    """Events and figures of all submissions, and the messages that are still to be sent.

    A message is stored by the transaction that ends its submission.
    """

    @reading
    def events_after(self, session: Session, submission: str, number: int, limit: int = 500) -> list[Event]:
        """Return the events of a submission after a number, at most `limit`, by number; none if it does not exist."""
        own = (SubmissionRow.name == submission, EventRow.number > min(number, LARGEST))
        query = select(EventRow).join(SubmissionRow, SubmissionRow.id == EventRow.submission_id).where(*own)
        rows = session.scalars(query.order_by(EventRow.number).limit(limit)).all()
        return [record_of(Event, row, submission=submission) for row in rows]

    @reading
    def new_events(
        self, session: Session, after: EventPosition | None, limit: int = 500
    ) -> tuple[list[Event], EventPosition]:
        """Return events of all submissions that a reader has not read, at most `limit`, and its new position.

        A reader begins with None, which returns no event: what was committed before is found with `events_after`. Who
        reads the events of a submission with `events_after` after that call, and then those of this method with larger
        numbers, has each of them once and in order.

        No event is missed. On SQLite, which has one writer, rows have numbers in the order of their commits, so the
        number of the last row that was read is the position. On PostgreSQL a row may be committed after rows with
        larger numbers. A number below a row that was read, without a row of its own, is a *hole*: its transaction runs
        still, or was rolled back, or the row was deleted. `EventPosition.complete` stays below the first hole, the
        rows above it are read again at each call, and those in `seen` are left out of the result.

        A hole is closed once it is certain that its row will not appear. A writer locks or inserts its submission's row
        before it gets a row number, so its transaction has an id by then. When a row r was read, the writers of all
        holes below r had their ids. `mark` is r and the id of a transaction that began later, which is larger than
        theirs. As soon as every transaction with a smaller id has ended, a row of a hole below r is either visible or
        will never be: one more read, with a snapshot of that moment or a later one, makes all rows up to r complete. A
        long transaction, of whatever program, only delays this; new rows are returned meanwhile.

        Events of one submission are returned in the order of their numbers, without a gap. Its writers lock its row one
        after another until they commit, so both its event numbers and its row numbers are in the order of commits, and
        the rows of one snapshot have no hole of this submission before another row of it.

        A new reader reads the last `START_WINDOW` rows' numbers to find the holes that are open then. A writer gets a
        row number in its last statement but the commit, and `open_service_store` lets PostgreSQL end a transaction
        that its program leaves idle for a minute.

        Args:
            after: the position that the last call returned; None for a new reader.
            limit: the most events to return, 1 or more.
        """
        if session.get_bind().dialect.name == "sqlite":
            return _in_order_of_commits(session, after, limit)
        return _with_holes(session, after, limit)

    @reading
    def figures(self, session: Session) -> Figures:
        """Return the queue in numbers. The answer has a few rows, however many submissions there are."""
        row = SubmissionRow
        groups = select(row.state, row.kind, func.count(), func.min(row.queued_at)).group_by(row.state, row.kind)
        granted = select(row.granted).where(row.state.in_([state.value for state in ACTIVE]))
        states: Counter[str] = Counter()
        waiting = {}
        for state, kind, count, since in session.execute(groups):
            states[state] += count
            if state == SubmissionState.QUEUED:
                waiting[kind] = Waiting(count, since)
        names = tuple(name for each in session.scalars(granted) for name in each)
        return Figures({state: states[state.value] for state in SubmissionState}, waiting, names)

    @reading
    def watched(self, session: Session) -> list[Submission]:
        """Return the submissions for which deployed servers are watched, with empty settings."""
        query = select(SubmissionRow).where(SubmissionRow.watch.is_not(None)).order_by(SubmissionRow.id)
        return [submission_record(row, with_settings=False) for row in session.scalars(query)]

    @writing
    def observed(self, session: Session, id: str, watch: Mapping[str, Any], now: datetime, drift: str | None) -> None:
        """Store what was compared last, unless another watch has begun meanwhile or none is there.

        Args:
            id: the submission.
            watch: the whole watch; `since` says which one it is.
            now: the time of the event and of the message.
            drift: how the servers have drifted, for the event `drift` and the webhook; None: as before.
        """
        row = find_locked(session, id)
        if row is None or row.watch is None or row.watch["since"] != watch["since"]:
            return
        row.watch = to_json_value("watch", watch)
        if drift is not None:
            event = add_event(session, row, "drift", {"text": drift}, now)
            add_message(session, row, f"drift_{row.id}_{event}", row.ended_at, now, drift)

    @reading
    def due_messages(self, session: Session, now: datetime, limit: int = 20) -> list[Message]:
        """Return messages whose time has come, those first that have waited longest."""
        due = select(MESSAGES).where(MESSAGES.c.next_at <= now).order_by(MESSAGES.c.next_at, MESSAGES.c.id).limit(limit)
        return [record_of(Message, row, number=row.id) for row in session.execute(due)]

    @writing
    def postpone_message(self, session: Session, number: int, attempts: int, next_at: datetime) -> None:
        """Say how many attempts have failed, and when the next one is due."""
        session.execute(update(MESSAGES).where(MESSAGES.c.id == number).values(attempts=attempts, next_at=next_at))

    @writing
    def drop_message(self, session: Session, number: int) -> None:
        """Forget a message that was sent, or given up."""
        session.execute(delete(MESSAGES).where(MESSAGES.c.id == number))


def _in_order_of_commits(
    session: Session, after: EventPosition | None, limit: int
) -> tuple[list[Event], EventPosition]:
    if after is None:
        return [], EventPosition(session.scalar(select(func.max(EventRow.id))) or 0)
    new = session.scalars(_rows_after(after.complete).limit(limit)).all()
    return _events(session, new), EventPosition(new[-1]) if new else after


def _with_holes(session: Session, after: EventPosition | None, limit: int) -> tuple[list[Event], EventPosition]:
    if after is None:
        last = session.scalar(select(func.max(EventRow.id))) or 0
        complete = max(0, last - START_WINDOW)
        return [], _position(session, complete, set(session.scalars(_rows_after(complete))), None)
    ended = _all_ended_before(session)  # before the rows are read, so that their snapshot is not an earlier one
    rows = session.scalars(_rows_after(after.complete).limit(limit + len(after.seen))).all()
    new = [row for row in rows if row not in after.seen][:limit]
    complete, mark = after.complete, after.mark
    read_all = len(new) < limit  # then the rows were not cut off by the limit either
    if mark is not None and ended >= mark[1] and (read_all or mark[0] <= new[-1]):
        complete, mark = max(complete, mark[0]), None
    return _events(session, new), _position(session, complete, after.seen.union(new), mark)


def _position(session: Session, complete: int, seen: Iterable[int], mark: tuple[int, int] | None) -> EventPosition:
    """Return the position with these rows seen: rows without a hole before them are complete."""
    above = sorted(row for row in seen if row > complete)
    for row in above:
        if row != complete + 1:
            break
        complete = row
    rest = frozenset(row for row in above if row > complete)
    if rest and mark is None:
        mark = above[-1], _own_transaction(session)
    return EventPosition(complete, rest, mark if rest else None)


def _rows_after(row: int) -> Select[int]:
    return select(EventRow.id).where(EventRow.id > row).order_by(EventRow.id)


def _all_ended_before(session: Session) -> int:
    """Return the id of a transaction before which all transactions have ended."""
    return int(session.scalar(text("SELECT CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text)")) or 0)


def _own_transaction(session: Session) -> int:
    """Return the id of this transaction, which is larger than those of all that have one already."""
    return int(session.scalar(text("SELECT CAST(pg_current_xact_id() AS text)")) or 0)


def _events(session: Session, rows: Sequence[int]) -> list[Event]:
    """Return the events of rows in increasing order; one that was deleted meanwhile is left out."""
    if not rows:
        return []
    query = select(EventRow, SubmissionRow.name).join(SubmissionRow, SubmissionRow.id == EventRow.submission_id)
    wanted = set(rows)
    found = session.execute(query.where(EventRow.id.between(rows[0], rows[-1])).order_by(EventRow.id))
    return [record_of(Event, row, submission=name) for row, name in found if row.id in wanted]
