"""The one wait for a server: until it is healthy, serves the right model and is ours, or cannot be any more."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from storage.records import Failure, FailureKind, Phase
from tuner.engines.base import Cancelled
from tuner.errors import TrialFailed, trial_failed
from tuner.processes.family import Identity

POLL_S = 0.1
_REQUEST_S = 1.0
_LISTEN = "0A"

Classify = Callable[[Phase, int | None], Failure]
"""Types the end of a server by its log (which the callable knows), the phase and the exit code."""


class Watched(Protocol):
    """What the wait needs of a started process; `tuner.processes.supervisor.ServerProcess` is one."""

    @property
    def identity(self) -> Identity:
        """The process itself."""

    def alive(self) -> bool:
        """Return True while the process runs."""

    def exit_code(self) -> int | None:
        """Return the exit code, None while it runs."""

    def descendants(self) -> set[Identity]:
        """Return the living processes that it started."""


@dataclass(frozen=True)
class Ready:
    """The server is ready: how long the wait was, and whether /proc proved that the listener is ours."""

    waited_s: float
    proved_ours: bool


def wait_ready(
    process: Watched,
    host: str,
    port: int,
    model: str,
    deadline_s: float,
    cancelled: Cancelled,
    classify: Classify,
) -> Ready:
    """Wait at most `deadline_s` seconds until the server on `host`:`port` is ready, looking every 0.1 s.

    Ready means: the listener belongs to the process or a descendant, `/health` is 200, `/v1/models` names `model`. If
    /proc does not tell whose the listener is (other user, other network namespace), it is accepted, because the port
    was refused before the launch if anybody answered; `Ready.proved_ours` then is False.

    Raises:
        TrialFailed: what `classify` says if the process exits, `STARTUP_TIMEOUT` at the deadline, `CANCELLED`,
            `PORT_TAKEN` if the listener is proved to be somebody else's, and `ENVIRONMENT_BROKEN` if our own server
            is healthy and serves another model.
    """
    begun = time.monotonic()
    while True:
        if not process.alive():
            raise TrialFailed(classify(Phase.READY, process.exit_code()))
        if cancelled.is_set():
            raise trial_failed(FailureKind.CANCELLED, Phase.READY, "cancelled while the server was starting")
        left = deadline_s - (time.monotonic() - begun)
        if left <= 0:
            message = f"the server was not ready after {deadline_s:g} s"
            raise trial_failed(FailureKind.STARTUP_TIMEOUT, Phase.READY, message)
        health = _get(host, port, "/health", min(left, _REQUEST_S))
        if health is not None:
            ours = _refuse_foreign(process, host, port)
            if health.status == 200 and _serves(host, port, model, min(left, _REQUEST_S)):
                return Ready(time.monotonic() - begun, ours)
        cancelled.wait(min(POLL_S, left))


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes


def _get(host: str, port: int, path: str, timeout_s: float) -> _Answer | None:
    """Return the answer; None if nobody answers in time. A listener that is silent or no HTTP has status 0."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.connect()
    except OSError:
        return None
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return _Answer(response.status, response.read())
    except (OSError, http.client.HTTPException):
        return _Answer(0, b"")
    finally:
        connection.close()


def _serves(host: str, port: int, model: str, timeout_s: float) -> bool:
    answer = _get(host, port, "/v1/models", timeout_s)
    if answer is None or answer.status != 200:
        return False
    try:
        names = [entry["id"] for entry in json.loads(answer.body)["data"]]
    except (ValueError, KeyError, TypeError):
        return False
    if model in names:
        return True
    message = f"the server serves {', '.join(map(repr, names)) or 'no model'} instead of {model!r}"
    raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.READY, message)


def _refuse_foreign(process: Watched, host: str, port: int) -> bool:
    """Return True if the listener is proved to be ours, False if /proc cannot tell."""
    sockets = listening_inodes(port)
    members = {process.identity, *process.descendants()}
    owned, complete = _socket_inodes(member.pid for member in members)
    if sockets & owned:
        return True
    if sockets and complete and process.alive():
        message = f"{host}:{port} is answered by a process that this trial did not start"
        raise trial_failed(FailureKind.PORT_TAKEN, Phase.READY, message)
    return False


def listening_inodes(port: int) -> set[int]:
    """Return the inodes of the sockets that listen on a TCP port, over IPv4 or IPv6; empty if /proc does not say."""
    inodes: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(int(fields[9]))
    return inodes


def _socket_inodes(pids: Iterable[int]) -> tuple[set[int], bool]:
    """Return the inodes of the processes' sockets, and whether all of them could be read."""
    inodes: set[int] = set()
    complete = True
    for pid in pids:
        try:
            descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        except FileNotFoundError:
            continue
        except PermissionError:
            complete = False
            continue
        for descriptor in descriptors:
            try:
                target = os.readlink(descriptor)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    return inodes, complete
