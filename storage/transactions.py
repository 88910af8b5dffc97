"""Transactions on one database, for reading and for writing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, event, func, select
from sqlalchemy.orm import Session

from storage.database import sqlite_path, storage_errors, writing_engine
from storage.locks import FileLock, LockHeld
from storage.waiting import NO_WAIT

_POLL_S = 0.01


class Transactions:
    """Opens a session for each transaction. Errors of the database become `StorageError`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = writing_engine(engine)
        self.wait = NO_WAIT
        """How operations of this store wait for its database."""
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
    def _reading(self) -> Iterator[Session]:
        with storage_errors(self._engine.url), Session(self._engine) as session, session.begin():
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with storage_errors(self._engine.url), Session(self._writer) as session, session.begin():
            yield session

    @contextmanager
    def turn(self, what: str, name: str) -> Iterator[None]:
        """Wait for the turn: of all threads and processes of the database, one at a time is within it."""
        if self._engine.dialect.name == "postgresql":
            with self._reading() as session:
                session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"{what} {name}", 0))))
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


def check_in_transactions(engine: Engine, check: Callable[[], None]) -> None:
    """Call `check` after each transaction has its connection and before its first statement.

    A check of another connection to the same server then holds until the commit: if the server restarts in between,
    the transaction's connection is lost as well.
    """

    def begin(_: Connection) -> None:
        check()

    event.listen(engine, "begin", begin)
