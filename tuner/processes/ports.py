"""Loopback ports for servers: given out once at a time on this host, and never one on which somebody answers.

The ports lie below the range from which Linux takes ports for outgoing connections (32768 and up by default), so none
is taken by chance in the seconds before the server binds it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
from pathlib import Path
from types import TracebackType

from storage.records import FailureKind, Phase
from tuner.errors import trial_failed

FIRST, LAST = 20_000, 29_999
_CONNECT_S = 1.0


class PortLease:
    """One port that no other tuner process on this host is given until `release`, or until this process dies."""

    def __init__(self, port: int, path: Path, descriptor: int) -> None:
        self.port = port
        self._path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Give the port back; may be called twice."""
        if self._descriptor is None:
            return
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> PortLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lease_port(folder: Path, host: str = "127.0.0.1", first: int = FIRST, last: int = LAST) -> PortLease:
    """Return a lease on a free port of `host` in [first, last]; `folder` is shared by all tuners of this host.

    Raises:
        TrialFailed: `PORT_TAKEN`, if every port of the range is leased or taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = last - first + 1
    start = random.SystemRandom().randrange(count)
    for step in range(count):
        port = first + (start + step) % count
        path = folder / f"port-{port}.lock"
        descriptor = _lock(path)
        if descriptor is None:
            continue
        lease = PortLease(port, path, descriptor)
        if _can_bind(host, port) and not somebody_answers(host, port):
            return lease
        lease.release()
    message = f"every port of {host} from {first} to {last} is taken; end what listens there and try again"
    raise trial_failed(FailureKind.PORT_TAKEN, Phase.LAUNCH, message)


def somebody_answers(host: str, port: int) -> bool:
    """Return True if a connection to the port is accepted: ask right before a launch."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return True
    except TimeoutError:
        return True  # a full backlog: there is a listener that does not accept
    except OSError:
        return False


def refuse_taken_port(host: str, port: int) -> None:
    """Do nothing if nobody answers on the port.

    Raises:
        TrialFailed: `PORT_TAKEN`, if somebody does.
    """
    if somebody_answers(host, port):
        message = f"somebody else already answers on {host}:{port}; a server there would not be ours"
        raise trial_failed(FailureKind.PORT_TAKEN, Phase.LAUNCH, message)


def _lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if not _names(path, descriptor):
        os.close(descriptor)  # its last owner removed the file between our open and our lock
        return None
    return descriptor


def _names(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _can_bind(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
