"""Transactions on one database, for reading and for writing, repeated while the database does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Table, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from storage.database import sqlite_path, storage_errors, writing_engine
from storage.locks import FileLock, LockHeld
from storage.waiting import NO_WAIT, DatabaseWait

_POLL_S = 0.01

S = TypeVar("S", bound="Transactions")
P = ParamSpec("P")
T = TypeVar("T")


class Transactions:
    """Opens a session for each transaction. Errors of the database become `StorageError`."""

    def __init__(self, engine: Engine, wait: DatabaseWait = NO_WAIT) -> None:
        """Keep the engine.

        Args:
            engine: of the database.
            wait: how operations wait for the database.
        """
        self._engine = engine
        self._writer = writing_engine(engine)
        self.wait = wait
        self.check: Callable[[], None] | None = None
        """The check of `check_before_writes`; None without one."""

    def check_before_writes(self, check: Callable[[], None]) -> None:
        """Call `check` in each transaction that writes; an exception ends the transaction."""
        self.check = check
        check_in_transactions(self._writer, check)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _session(self, engine: Engine, **info: Any) -> Iterator[Session]:
        with storage_errors(engine.url), Session(engine, info=info) as session, session.begin():
            yield session

    @contextmanager
    def turn(self, what: str, name: str) -> Iterator[None]:
        """Wait for the turn: of all threads and processes of the database, one at a time is within it."""
        if self._engine.dialect.name == "postgresql":
            with self._session(self._engine) as session:
                lock_words(session, f"{what} {name}")
                yield
            return
        lock = FileLock(sqlite_path(self._engine.url), what, name)
        while True:
            try:
                lock.take()
                break
            except LockHeld:
                time.sleep(_POLL_S)
        try:
            yield
        finally:
            lock.release()


def reading(method: Callable[Concatenate[S, Session, P], T]) -> Callable[Concatenate[S, P], T]:
    """Run a method in a transaction that reads, again while the database does not answer, see `DatabaseWait`.

    The method's first argument is the transaction; callers leave it out.
    """
    return _in_transaction(method, writes=False)


def writing(method: Callable[Concatenate[S, Session, P], T]) -> Callable[Concatenate[S, P], T]:
    """Run a method in a transaction that writes, as `reading` does in one that reads.

    A commit may succeed although its acknowledgement is lost. A second try of such a method finds its own change, and
    returns what the first one would have returned: it changes nothing by itself, or asks `is_repeated`.
    """
    return _in_transaction(method, writes=True)


def _in_transaction(method: Callable[Concatenate[S, Session, P], T], *, writes: bool) -> Callable[Concatenate[S, P], T]:
    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        kept: dict[str, Any] = {}

        def once(again: bool) -> T:
            engine = self._writer if writes else self._engine
            with self._session(engine, is_repeated=again, kept=kept) as session:
                return method(self, session, *args, **kwargs)

        return self.wait.run(once)

    return run


def is_repeated(session: Session) -> bool:
    """Return whether an earlier try of this operation lost its connection, so that its commit may have succeeded."""
    return bool(session.info["is_repeated"])


def first_seen(session: Session, name: str, value: T) -> T:
    """Return the value that the first try of this operation saw under that name; of the first try, it is `value`."""
    seen: T = session.info["kept"].setdefault(name, value)
    return seen


def lock_words(session: Session, words: str) -> None:
    """Wait for PostgreSQL's lock of some words, and keep it until the transaction ends."""
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(words, 0))))


def insert_into(session: Session, table: Any) -> postgresql.Insert | sqlite.Insert:
    """Return the database's own INSERT, which can say what happens if the row exists."""
    return sqlite.insert(table) if session.get_bind().dialect.name == "sqlite" else postgresql.insert(table)


def put(session: Session, table: Table, key: str, values: dict[str, Any]) -> None:
    """Insert a row, or replace the values of the one with the same key."""
    insert = insert_into(session, table).values(values)
    session.execute(insert.on_conflict_do_update(index_elements=[key], set_=values))


def check_in_transactions(engine: Engine, check: Callable[[], None]) -> None:
    """Call `check` after each transaction has its connection and before its first statement.

    A check of another connection to the same server then holds until the commit: if the server restarts in between,
    the transaction's connection is lost as well.
    """

    def begin(_: Connection) -> None:
        check()

    event.listen(engine, "begin", begin)
