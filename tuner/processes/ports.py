"""Lease loopback ports to servers: each to one holder on this host at a time, and only ports on which nothing listens.

The ports lie below the range from which Linux takes ports for outgoing connections (32768 and up by default), so that
none is taken by chance in the seconds before the server binds it. No port is leased whose old connections still
linger (TIME_WAIT): a server without SO_REUSEADDR cannot bind it.

A lease is a lock on a file. The kernel releases it with the process, also after kill -9. The file is removed while the
lock is held. A process that opened the file before that gets a lock on a file without a name, which `filelock` detects
and refuses.
"""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from records.trials import FailureKind, Phase
from tuner.errors import trial_failed

FIRST_PORT, LAST_PORT = 20_000, 29_999
_CONNECT_S = 1.0


class PortLease:
    """One port that no other tuner process on this host gets until `release`, or until this process ends."""

    def __init__(self, port: int, lock: FileLock) -> None:
        self.port = port
        self._lock = lock

    def release(self) -> None:
        """Return the port; may be called twice and from any thread."""
        if self._lock.is_locked:
            Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock.release()

    def __enter__(self) -> PortLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lease_port(folder: Path, host: str = "127.0.0.1", first: int = FIRST_PORT, last: int = LAST_PORT) -> PortLease:
    """Return a lease on a free port of `host` in [first, last]; all tuners of this host share `folder`.

    Raises:
        TrialFailed: `PORT_TAKEN`, if every port of the range is leased or taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = last - first + 1
    start = random.SystemRandom().randrange(count)
    for step in range(count):
        port = first + (start + step) % count
        lock = FileLock(folder / f"port-{port}.lock", mode=0o600, thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        lease = PortLease(port, lock)
        if _can_bind(host, port) and not port_answers(host, port):
            return lease
        lease.release()
    message = f"every port of {host} from {first} to {last} is taken; end the programs that listen there and try again"
    raise trial_failed(FailureKind.PORT_TAKEN, Phase.LAUNCH, message)


def port_answers(host: str, port: int) -> bool:
    """Return True if the port accepts a connection."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return True
    except TimeoutError:
        return True  # a full backlog: there is a listener that does not accept
    except OSError:
        return False


def refuse_taken_port(host: str, port: int) -> None:
    """Raise if a program listens on the port. To be called right before a launch.

    Raises:
        TrialFailed: `PORT_TAKEN`, if a program listens.
    """
    if port_answers(host, port):
        message = f"another program already listens on {host}:{port}; requests would go to it instead of our server"
        raise trial_failed(FailureKind.PORT_TAKEN, Phase.LAUNCH, message)


def _can_bind(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
