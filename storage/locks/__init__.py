"""Locks that all processes of one database share: an advisory lock on PostgreSQL, a file beside an SQLite database."""

from __future__ import annotations

from storage.database import parse_url, sqlite_path
from storage.errors import StorageError
from storage.locks.advisory_lock import AdvisoryLock
from storage.locks.file_lock import FileLock
from storage.locks.held import Holder, Lock, LockHeld, LockLost

__all__ = ["FileLock", "Holder", "Lock", "LockHeld", "LockLost", "study_lock", "sync_lock"]


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
