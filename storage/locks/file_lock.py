"""A lock that is a file beside an SQLite database; the operating system releases it when its process ends."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path

from storage.errors import StorageError
from storage.locks.held import UNKNOWN, Holder, LockHeld, digest

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MODE = 0o600
_HOLDER_WRITES_S = 1.0
"""How long a holder may take to write its name into the file."""


class FileLock:
    """See `storage.locks.held.Lock`. The file has the holder's process id and host, and is removed at the release."""

    def __init__(self, database: Path, kind: str, name: str) -> None:
        """Choose the file's path; nothing is created.

        Args:
            database: the database's file; symbolic links are followed, so that all its names lead to one lock.
            kind: what is locked, a part of the file's name.
            name: which one of that kind; empty if there is only one.
        """
        suffix = f"{kind}-{digest(kind, name).hex()}" if name else kind
        real = database.resolve()
        self.path = real.with_name(f"{real.name}.{suffix}.lock")
        self._file: int | None = None

    def take(self) -> None:
        """Take the lock, see `Lock.take`."""
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
        """Return another process that holds the lock, see `Lock.holder`."""
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
