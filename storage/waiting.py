"""Repeat operations on a database that does not answer, or whose disk is full, until it works again."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from storage.database import BUSY_TIMEOUT_S
from storage.errors import NotYetAvailable, StorageError, StorageUnavailable, WaitInterrupted, database_reason

DATABASE_WAIT_S = 600.0
"""How long one operation of a driver is repeated while the database does not answer."""

BUSY_S = 5.0
"""How long SQLite itself waits for a locked file within one try: Ctrl-C has no effect for that long."""

_SHOWN_AFTER_S = 1.0
_SQLITE_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_FULL)
_POSTGRESQL_STATES = ("57P01", "57P02", "57P03", "53100", "53300")
"""Shut down, crashed, starting, disk full, no connection free."""

_CONNECTION_STATES = "08"

T = TypeVar("T")


class DatabaseWait:
    """Repeats operations with increasing delays after errors of the connection; other errors pass at once."""

    def __init__(
        self,
        report: Callable[[str], None] = lambda _: None,
        stop: threading.Event | None = None,
        limit_s: float = DATABASE_WAIT_S,
        first_delay_s: float = 0.1,
        longest_delay_s: float = 10.0,
        busy_s: float = BUSY_S,
    ) -> None:
        """Choose the delays.

        Args:
            report: receives one line when a wait begins, and one when the database answers again.
            stop: ends a wait when it is set.
            limit_s: longest wait of one operation in seconds; 0: none.
            first_delay_s: seconds before the second try; each further delay is twice as long.
            longest_delay_s: upper limit of a delay in seconds.
            busy_s: how long SQLite waits for a locked file within one try.
        """
        self.busy_s = busy_s
        self._report = report
        self._stop = stop or threading.Event()
        self._limit_s = limit_s
        self._first_delay_s = first_delay_s
        self._longest_delay_s = longest_delay_s

    def run(self, operation: Callable[[bool], T], *errors: type[Exception]) -> T:
        """Return the result of an operation, repeated while the database does not answer.

        Args:
            operation: one transaction. It gets False at its first try; True says that an earlier try lost its
                connection, so that its commit may have succeeded.
            errors: exceptions that may have a database's error as their cause, beside `StorageError`.

        Raises:
            StorageUnavailable: after the longest wait.
            WaitInterrupted: if `stop` was set.
        """
        began, again, shown, delay_s = time.monotonic(), False, False, self._first_delay_s
        handled: tuple[type[Exception], ...] = (StorageError, SQLAlchemyError, *errors)
        while True:
            try:
                result = operation(again)
            except handled as error:
                if not self._limit_s or not may_pass(error):
                    raise
                waited_s = time.monotonic() - began
                if not shown and (again or waited_s > _SHOWN_AFTER_S):
                    shown = True
                    self._report(self._waiting_line(error))
                self._pause(delay_s, waited_s, error)
                again, delay_s = True, min(2 * delay_s, self._longest_delay_s)
                continue
            if shown:
                self._report(f"the database answers again after {time.monotonic() - began:.0f} s")
            return result

    def _waiting_line(self, error: Exception) -> str:
        limit = f"{self._limit_s / 60:.0f} min" if self._limit_s >= 60 else f"{self._limit_s:.0f} s"
        return f"waiting at most {limit} for the database ({_reason(error)}); Ctrl-C ends the wait"

    def _pause(self, delay_s: float, waited_s: float, error: Exception) -> None:
        """Wait before the next try.

        Raises:
            StorageUnavailable: if the wait is at its end.
        """
        left_s = self._limit_s - waited_s
        stopped = self._stop.wait(max(min(delay_s, left_s), 0.0))
        if not stopped and left_s > 0:
            return
        ended = "interrupted while the database" if stopped else f"for {waited_s:.0f} s the database"
        message = f"{ended} did not answer: {_reason(error)}; run the same command again, no finished trial is lost"
        raise (WaitInterrupted if stopped else StorageUnavailable)(message) from error


NO_WAIT = DatabaseWait(limit_s=0, busy_s=BUSY_TIMEOUT_S)
"""Every error passes at once."""


def may_pass(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, may pass: a lost or blocked connection, or a full disk."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, NotYetAvailable):
            return True
        if isinstance(cause, DBAPIError):
            return cause.connection_invalidated or _is_lost(cause.orig)
        cause = cause.__cause__
    return False


def _is_lost(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return isinstance(error, sqlite3.OperationalError) and (code or 0) & 0xFF in _SQLITE_CODES
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None:  # the server has not answered
        return type(error).__name__ in ("OperationalError", "ConnectionTimeout")
    return str(state) in _POSTGRESQL_STATES or str(state).startswith(_CONNECTION_STATES)


def _reason(error: BaseException) -> str:
    return database_reason(error) or str(error)
