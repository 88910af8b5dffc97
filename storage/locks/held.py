"""The interface of a lock, its holder, and the errors of both kinds of lock. Importing this loads no SQLAlchemy."""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from typing import Protocol

from storage.errors import StorageError, StorageUnavailable


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, and its host."""

    process: str
    host: str

    @classmethod
    def this_process(cls) -> Holder:
        """Return this process."""
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


def digest(kind: str, name: str) -> bytes:
    """Return 8 bytes that identify a lock within its database."""
    return hashlib.sha256(f"tuner {kind} {name}".encode(errors="surrogatepass")).digest()[:8]
