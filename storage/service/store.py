"""The service's store: all reads and writes of its tables, in terms of `storage.service.records`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, delete, event, func, insert, or_, select, update
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from storage import database
from storage.columns import record_of, to_json_value, values_of
from storage.service.errors import TokenExists, UnknownToken
from storage.service.records import (
    ACTIVE,
    CONSIDERED,
    ENDED,
    AuditEntry,
    Event,
    Figures,
    Message,
    Owner,
    Submission,
    SubmissionState,
    Token,
    Waiting,
)
from storage.service.rows import LARGEST, add_event, add_message, find_locked, submission_record
from storage.service.runs import RunStore
from storage.service.submissions import SubmissionStore
from storage.tables import AUDIT, MESSAGES, OWNERS, TOKENS, EventRow, SubmissionRow
from storage.transactions import Transactions, put, reading, writing
from storage.waiting import NO_WAIT, DatabaseWait

_LARGEST = 2**63 - 1  # of an entry's number; the databases refuse larger ones


class AccessStore(Transactions):
    """Who may use the service, how much, and what they did."""

    @reading
    def owners(self, session: Session) -> list[Owner]:
        """Return the owners that were set, by name. Another owner has the values of `Owner`'s defaults."""
        found = [record_of(Owner, row) for row in session.execute(select(OWNERS))]
        return sorted(found, key=lambda owner: owner.name)

    @writing
    def set_owner(self, session: Session, owner: Owner) -> None:
        """Store an owner, in place of an earlier record of that name."""
        put(session, OWNERS, "name", values_of(OWNERS, owner))

    @writing
    def add_token(self, session: Session, token: Token) -> None:
        """Store a new token.

        Raises:
            TokenExists: if its name or its digest is taken.
        """
        try:
            session.execute(insert(TOKENS).values(values_of(TOKENS, token)))
        except IntegrityError:
            raise TokenExists(f"there is already a token {token.name!r}; choose another name") from None

    @reading
    def token(self, session: Session, digest: str) -> Token | None:
        """Return the token of a digest, also an expired or revoked one; None if there is none."""
        row = session.execute(select(TOKENS).where(TOKENS.c.digest == digest)).first()
        return None if row is None else record_of(Token, row)

    @reading
    def tokens_of(self, session: Session, digests: Collection[str]) -> dict[str, Token]:
        """Return the tokens of some digests by digest, also expired or revoked ones."""
        rows = session.execute(select(TOKENS).where(TOKENS.c.digest.in_(digests))) if digests else ()
        return {row.digest: record_of(Token, row) for row in rows}

    @reading
    def tokens(self, session: Session) -> list[Token]:
        """Return all tokens, in the order in which they were added."""
        return [record_of(Token, row) for row in session.execute(select(TOKENS).order_by(TOKENS.c.id))]

    @writing
    def revoke_token(self, session: Session, name: str, now: datetime) -> Token:
        """Revoke a token; one that is revoked keeps the time of its revocation.

        Raises:
            UnknownToken: if there is none of that name.
        """
        row = session.execute(select(TOKENS).where(TOKENS.c.name == name).with_for_update()).first()
        if row is None:
            raise UnknownToken(f"there is no token {name!r}; list the tokens to see their names")
        revoked_at = row.revoked_at or now
        session.execute(update(TOKENS).where(TOKENS.c.id == row.id).values(revoked_at=revoked_at))
        return replace(record_of(Token, row), revoked_at=revoked_at)

    @writing
    def forget_tokens(self, session: Session, prefix: str, now: datetime) -> None:
        """Delete expired tokens whose names begin with `prefix`."""
        named = TOKENS.c.name.startswith(prefix, autoescape=True)
        session.execute(delete(TOKENS).where(named, TOKENS.c.expires_at < now))

    @writing
    def touch_token(self, session: Session, name: str, now: datetime) -> None:
        """Store when a token was used last; an earlier time, and a name that no token has, change nothing."""
        earlier = or_(TOKENS.c.used_at.is_(None), TOKENS.c.used_at < now)
        session.execute(update(TOKENS).where(TOKENS.c.name == name, earlier).values(used_at=now))

    @writing
    def audit(self, session: Session, entry: AuditEntry) -> None:
        """Add an entry to the audit log; its `number` is not read. Lost acknowledgements may leave more than one.

        Raises:
            StorageError: if its details are not JSON.
        """
        session.execute(insert(AUDIT).values(values_of(AUDIT, entry)))

    @writing
    def forget_audit(self, session: Session, before: datetime, most: int) -> int:
        """Delete the oldest entries of the audit log, at most `most` and only those before a time; return how many."""
        oldest = session.execute(select(AUDIT.c.id, AUDIT.c.at).order_by(AUDIT.c.id).limit(most)).all()
        ids = [id for id, at in oldest if at < before]
        session.execute(delete(AUDIT).where(AUDIT.c.id.in_(ids)))
        return len(ids)

    @reading
    def audit_log(self, session: Session, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
        """Return entries of the audit log, the newest first; of those before a number, if one is given."""
        query = select(AUDIT).order_by(AUDIT.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AUDIT.c.id < min(before, _LARGEST))
        return [record_of(AuditEntry, row, number=row.id) for row in session.execute(query)]


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

        Those that run or wait are read in any case, the others by their `ids`, if they exist.

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

        `watch` is the whole watch, whose `since` says which one it is. `drift` is how the servers have drifted, for the
        event `drift` and the webhook; None: as before.
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


IDLE_TRANSACTION_S = 60
"""How long PostgreSQL keeps a transaction, and its locks, whose program sends nothing: its host may have died."""


class ServiceStore(SubmissionStore, RunStore, WatchingStore, AccessStore):
    """What the service stores beside the studies; threads, processes and hosts can share the database.

    Every method is one transaction, and either all of its changes happen or none. Times are arguments; a datetime has a
    time zone. Methods that change a submission lock its row, so they happen one after another. A store with a
    `DatabaseWait` repeats a method while the database does not answer, see `storage.transactions`: the store of a
    driver, of whose methods alone a repetition is safe.

    Raises:
        StorageError: by every method, if the database fails. Methods list further reasons.
    """


def open_service_store(url: str, wait: DatabaseWait | None = None) -> ServiceStore:
    """Open a database and return the service's store; arguments and errors are those of `storage.open_store`."""
    wait = wait or NO_WAIT
    return ServiceStore(_with_limit(database.open_engine(url, wait.busy_s)), wait)


def _with_limit(engine: Engine) -> Engine:
    """Return the engine, whose transactions on PostgreSQL end if their program stalls."""
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _limit_idle_transactions)
        engine.dispose()  # the connection of the migration has no limit
    return engine


def _limit_idle_transactions(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_TRANSACTION_S}s'")
    cursor.close()
    connection.commit()
