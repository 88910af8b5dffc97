"""Locks that all processes of one database share: an advisory lock on PostgreSQL, a file beside an SQLite database."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import socket
import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy import URL, Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from storage.database import create_database_engine, parse_url, sqlite_path, storage_errors
from storage.errors import NotYetAvailable, StorageError, StorageUnavailable

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MODE = 0o600
_HOLDER_WRITES_S = 1.0
"""How long a holder may take to write its name into the file."""

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


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, and its host."""

    process: str
    host: str

    @classmethod
    def this_process(cls) -> Holder:
        return cls(str(os.getpid()), socket.gethostname())

    def __str__(self) -> str:
        return f"process {self.process} on host {self.host}"


UNKNOWN = Holder("unknown", "unknown")


class LockHeld(StorageError):
    """Another process holds the lock."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"{holder} holds the lock")
        self.holder = holder


class LockLost(StorageUnavailable):
    """The lock was lost with its connection, and another process took it."""


class Lock(Protocol):
    """A lock of one database. A process releases it when it ends, however it ends."""

    def take(self) -> None:
        """Take the lock, without a wait.

        Raises:
            LockHeld: if another process holds it.
            StorageError: if the database, or the folder of the lock file, cannot be used.
        """

    def check(self) -> None:
        """Check that this process still holds the lock, and take a lost one again.

        Raises:
            LockLost: if another process has taken it meanwhile.
        """

    def holder(self) -> Holder | None:
        """Return another process that holds the lock; None if it is free. Nothing is created.

        Raises:
            StorageError: as for `take`.
        """

    def release(self) -> None:
        """Release the lock; a lock that was not taken stays as it is."""


def _digest(kind: str, name: str) -> bytes:
    """Return 8 bytes that identify a lock within its database."""
    return hashlib.sha256(f"tuner {kind} {name}".encode(errors="surrogatepass")).digest()[:8]


def study_lock(url: str, study: str) -> Lock:
    """Return the lock of a study, not taken yet; its holder is the driver that runs the study.

    Args:
        url: of the database, as for `storage.open_store`.
        study: name of the study.

    Raises:
        StorageError: if the URL is not one, or the kind of database is not supported.
    """
    return _lock(url, "study", study)


def sync_lock(url: str) -> Lock:
    """Return the lock of a database's sync to MLflow, not taken yet; arguments and errors as for `study_lock`."""
    return _lock(url, "sync", "")


def _lock(url: str, kind: str, name: str) -> Lock:
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return AdvisoryLock(parsed, kind, name)
    if parsed.get_backend_name() == "sqlite":
        return FileLock(sqlite_path(parsed), kind, name)
    raise StorageError(f"{parsed.drivername} is not a supported database: use SQLite or PostgreSQL")


class FileLock:
    """A lock that is a file beside an SQLite database, see `Lock`. The operating system releases it with its process.

    The file has the holder's process id and host, and is removed at the release.
    """

    def __init__(self, database: Path, kind: str, name: str) -> None:
        """Choose the file's path; nothing is created.

        Args:
            database: the database's file; symbolic links are followed, so that all its names lead to one lock.
            kind: what is locked, a part of the file's name.
            name: which one of that kind; empty if there is only one.
        """
        suffix = f"{kind}-{_digest(kind, name).hex()}" if name else kind
        real = database.resolve()
        self.path = real.with_name(f"{real.name}.{suffix}.lock")
        self._file: int | None = None

    def take(self) -> None:
        while self._file is None:
            file = self._open(os.O_CREAT)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = _read_holder(file)
                os.close(file)
                raise LockHeld(holder) from None
            if _is_at(file, self.path):
                self._file = file
            else:  # its former holder has removed this file between our open and our lock
                os.close(file)
        me = Holder.this_process()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{me.process} {me.host}\n".encode(), 0)

    def check(self) -> None:
        """Do nothing: a process does not lose the lock of a file."""

    def holder(self) -> Holder | None:
        try:
            file = self._open(0)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _read_holder(file)
        finally:
            os.close(file)
        return None

    def release(self) -> None:
        """Remove the file and release the lock."""
        if self._file is None:
            return
        if _is_at(self._file, self.path):
            self.path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = None

    def _open(self, flags: int) -> int:
        try:
            file = os.open(self.path, _FLAGS | flags, _MODE)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(self._refusal(os.strerror(error.errno or 0))) from None
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise StorageError(self._refusal("not a regular file"))
        return file

    def _refusal(self, reason: str) -> str:
        reason = "it is a symbolic link" if self.path.is_symlink() else reason
        return f"cannot use the lock file {self.path}: {reason}; remove it if no tuner uses this database"


def _is_at(file: int, path: Path) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _read_holder(file: int) -> Holder:
    """Return the process that wrote its name into a lock file; `UNKNOWN` if it has not within a second."""
    deadline = time.monotonic() + _HOLDER_WRITES_S
    while time.monotonic() < deadline:
        process, _, host = os.pread(file, 1024, 0).decode(errors="replace").strip().partition(" ")
        if process and host:
            return Holder(process, host)
        time.sleep(0.01)
    return UNKNOWN


class AdvisoryLock:
    """A lock that is a PostgreSQL advisory lock on a connection of its own, see `Lock`.

    The server releases it when the connection ends, so also at a restart.
    """

    def __init__(self, url: URL, kind: str, name: str) -> None:
        """Compute the lock's key; nothing connects yet.

        Args:
            url: of the database.
            kind: what is locked.
            name: which one of that kind; empty if there is only one.
        """
        self._url = url
        self._what = f"the {kind} {name!r}" if name else f"the {kind}"
        key = _digest(kind, name)
        self._key = int.from_bytes(key, signed=True)
        self._words = {"high": int.from_bytes(key[:4]), "low": int.from_bytes(key[4:])}
        me = Holder.this_process()
        self._application = f"tuner {me.process} {secrets.token_hex(4)} {me.host}"[:_NAME_LIMIT]
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._taken = False
        self._mutex = threading.Lock()

    def take(self) -> None:
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
        with self._mutex, storage_errors(self._url):
            rival = self._rival(self._connected())
            self._disconnect()
        return None if rival is None else _holder(rival[1])

    def release(self) -> None:
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
