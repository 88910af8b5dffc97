"""A lock that is a PostgreSQL advisory lock on a connection of its own."""

from __future__ import annotations

import secrets
import threading

from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from storage.database import create_database_engine, storage_errors
from storage.errors import NotYetAvailable
from storage.locks.held import UNKNOWN, Holder, LockHeld, LockLost, digest

_NAME_LIMIT = 63  # PostgreSQL cuts an application_name at this length
_SETTINGS = {"idle_session_timeout": "0", "tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10"}
"""The connection is idle for hours; the server must notice within minutes that its host has gone."""

_HOLDERS = """
SELECT locks.pid, coalesce(activity.application_name, '') FROM pg_locks AS locks
LEFT JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 1
  AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND locks.classid = CAST(:high AS bigint) AND locks.objid = CAST(:low AS bigint)
"""


class AdvisoryLock:
    """See `storage.locks.held.Lock`. The server releases the lock when the connection ends, so also at a restart."""

    def __init__(self, url: URL, kind: str, name: str) -> None:
        """Compute the lock's key; nothing connects yet.

        Args:
            url: of the database.
            kind: what is locked.
            name: which one of that kind; empty if there is only one.
        """
        self._url = url
        self._what = f"the {kind} {name!r}" if name else f"the {kind}"
        key = digest(kind, name)
        self._key = int.from_bytes(key, signed=True)
        self._words = {"high": int.from_bytes(key[:4]), "low": int.from_bytes(key[4:])}
        me = Holder.this_process()
        self._application = f"tuner {me.process} {secrets.token_hex(4)} {me.host}"[:_NAME_LIMIT]
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._taken = False
        self._mutex = threading.Lock()

    def take(self) -> None:
        """Take the lock, see `Lock.take`."""
        with self._mutex, storage_errors(self._url):
            if (rival := self._acquire()) is not None:
                self._disconnect()
                raise LockHeld(_holder(rival[1]))
            self._taken = True

    def check(self) -> None:
        """Check that the connection lives, see `Lock.check`.

        Raises:
            DBAPIError: if the database does not answer; the caller's transaction fails for the same reason.
        """
        with self._mutex:
            if not self._taken or self._is_connected():
                return
            rival = self._acquire()
            if rival is None:
                return
            if rival[1] == self._application:
                self._end_own_session(rival[0])
            raise LockLost(
                f"the connection that holds the lock of {self._what} was lost, and {_holder(rival[1])} has taken the "
                "lock; this run ends so that no trial runs twice"
            )

    def holder(self) -> Holder | None:
        """Return another process that holds the lock, see `Lock.holder`."""
        with self._mutex, storage_errors(self._url):
            rival = self._rival(self._connected())
            self._disconnect()
        return None if rival is None else _holder(rival[1])

    def release(self) -> None:
        """Release the lock with its connection."""
        with self._mutex:
            self._taken = False
            self._disconnect()

    def _is_connected(self) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.exec_driver_sql("SELECT 1")
            self._connection.rollback()
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            self._disconnect()
            return False
        return True

    def _acquire(self) -> tuple[int, str] | None:
        """Try to take the lock on a new connection; return the session and the name of the holder, None if taken."""
        connection = self._connected()
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": self._key}):
            if (rival := self._rival(connection)) is not None:
                return rival
        connection.rollback()
        return None

    def _rival(self, connection: Connection) -> tuple[int, str] | None:
        row = connection.execute(text(_HOLDERS), self._words).first()
        connection.rollback()
        return None if row is None else (int(row[0]), str(row[1]))

    def _end_own_session(self, session: int) -> None:
        """End a former session of this process, whose end the server has not noticed yet.

        Raises:
            NotYetAvailable: always, so that the caller tries again.
        """
        assert self._connection is not None
        self._connection.execute(text("SELECT pg_terminate_backend(:session)"), {"session": session})
        self._disconnect()
        raise NotYetAvailable(f"the server still holds the former connection of the lock of {self._what}")

    def _connected(self) -> Connection:
        """Return a new connection that names this process."""
        self._disconnect()
        self._engine = create_database_engine(self._url)
        self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        settings = {**_SETTINGS, "application_name": self._application}
        query = text("SELECT set_config(name, :value, false) FROM pg_settings WHERE name = :name")
        for name, value in settings.items():
            self._connection.execute(query, {"name": name, "value": value})
        self._connection.rollback()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
        if self._engine is not None:
            self._engine.dispose()
        self._connection = self._engine = None


def _holder(application: str) -> Holder:
    """Return the process of an `application_name`."""
    words = application.split(" ", 3)
    return Holder(words[1], words[3]) if len(words) == 4 and words[0] == "tuner" else UNKNOWN
