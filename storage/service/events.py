"""The part of the service's store for those who watch: events, the queue in numbers, and messages to webhooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from storage.columns import record_of, to_json_value
from storage.service.records import (
    ACTIVE,
    CONSIDERED,
    ENDED,
    Event,
    Figures,
    Message,
    Submission,
    SubmissionState,
    Waiting,
)
from storage.service.rows import LARGEST, add_event, add_message, find_locked, submission_record
from storage.tables import MESSAGES, EventRow, SubmissionRow
from storage.transactions import Transactions, reading, writing


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
    def last_events(self, session: Session, ids: Collection[str]) -> dict[str, tuple[int, bool]]:
        """Return the number of the last event of submissions by id, and whether it has ended.

        Args:
            ids: read whatever their state is, if they exist; those that run or wait are read in any case.

        A number that is returned has all smaller ones before it (`RunStore.event`), so a reader that reads on with
        `events_after` from the last number that it has read gets each event once, and in order.
        """
        row, considered = SubmissionRow, [state.value for state in CONSIDERED]
        query = select(row.name, row.events, row.state).where(or_(row.state.in_(considered), row.name.in_(ids)))
        return {name: (number, state in ENDED) for name, number, state in session.execute(query)}

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
