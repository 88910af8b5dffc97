"""Wait for a started server until it is healthy and serves the right model, or cannot become so."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import psutil

from records.trials import Failure, FailureKind, Phase
from tuner.cancellation import CancelToken
from tuner.errors import TrialFailed, trial_failed
from tuner.http import JSON, get_local
from tuner.processes.family import Identity

_POLL_S = 0.1
_REQUEST_S = 5.0
"""Timeout of one HTTP request in seconds: above 1.0, as SGLang looks once a second for the token of its `/health`."""
_RECORD_S = 1.0
"""Seconds between two records of a starting server's descendants and shared memory."""
_SHOWN_CHARS = 200
_LOOKS = 3
"""Times that another program must be seen on the port: one reading of /proc/net/tcp may miss a changing socket."""

NO_ENDPOINT = frozenset({404, 405, 501})
"""HTTP status codes of a server that lacks an endpoint."""

Classify = Callable[[Phase, int | None], Failure]
"""Returns the typed failure of a server that ended, from the phase, the exit code and the log."""


class StartedProcess(Protocol):
    """What a server runs as: one process, see `supervisor.ServerProcess`, or the ranks of several nodes."""

    @property
    def identity(self) -> Identity:
        """The process itself."""

    @property
    def pid(self) -> int:
        """The process id."""

    def alive(self) -> bool:
        """Return True while the process runs."""

    def exit_code(self) -> int | None:
        """Return the exit code, None while it runs."""

    def descendants(self) -> set[Identity]:
        """Return the living processes that it started."""

    def record_family(self) -> None:
        """Write its descendants and their shared memory to its record."""

    def stop(self, timeout_s: float = 30.0, cancelled: CancelToken | None = None) -> list[Identity]:
        """End it and everything that it started, in haste once `cancelled` is set; return the survivors."""


def wait_ready(
    process: StartedProcess,
    host: str,
    port: int,
    model: str,
    deadline_s: float,
    cancelled: CancelToken,
    classify: Classify,
    headers: Mapping[str, str] | None = None,
    *,
    health_required: bool = True,
) -> None:
    """Wait at most `deadline_s` seconds until the server on `host`:`port` is ready; poll every 0.1 s.

    A server is ready once the process or a descendant listens on the port, `/health` answers 200 and `/v1/models` lists
    `model`. Without `health_required`, a server that has no `/health` is ready once it lists the model. If /proc does
    not show the listener's owner (another user or network namespace), the listener is accepted: the launch was refused
    if anything listened on the port before. `headers` are sent with the request of `/v1/models`.

    Raises:
        TrialFailed: the failure that `classify` returns if the process exits; `STARTUP_TIMEOUT` at the deadline;
            `CANCELLED`; `PORT_TAKEN` if another process is proved to listen; `ENVIRONMENT_BROKEN` if our server is
            healthy and serves another model.
    """
    begun = recorded = time.monotonic()
    problem: str | None = None
    while True:
        if time.monotonic() - recorded > _RECORD_S:
            process.record_family()
            recorded = time.monotonic()
        if not process.alive():
            raise TrialFailed(classify(Phase.READY, process.exit_code()))
        if cancelled.is_set():
            raise trial_failed(FailureKind.CANCELLED, Phase.READY, "cancelled while the server was starting")
        left = deadline_s - (time.monotonic() - begun)
        if left <= 0:
            message = f"the server was not ready after {deadline_s:g} s" + (f": {problem}" if problem else "")
            raise trial_failed(FailureKind.STARTUP_TIMEOUT, Phase.READY, message)
        health = get_local(host, port, "/health", min(left, _REQUEST_S))
        if health is not None:
            _refuse_other_listener(process, host, port)
            found = health.problem and f"/health: {health.problem}"
            if health.status == 200 or (not health_required and health.status in NO_ENDPOINT):
                found = _models_problem(host, port, model, min(left, _REQUEST_S), headers)
                if found is None:
                    return
            if left >= _REQUEST_S or problem is None:  # a request that the deadline cuts short says less
                problem = found
        cancelled.wait(min(_POLL_S, left))


def _models_problem(
    host: str, port: int, model: str, timeout_s: float, headers: Mapping[str, str] | None
) -> str | None:
    """Return None if the server lists the model, else why its list cannot be read.

    Raises:
        TrialFailed: `ENVIRONMENT_BROKEN`, if it lists only others.
    """
    reply = get_local(host, port, "/v1/models", timeout_s, types=JSON, headers=headers)
    if reply is None:
        return "/v1/models: no connection"
    if reply.status != 200:
        return f"/v1/models: {reply.problem or f'status {reply.status}'}"
    try:
        names = [entry["id"] for entry in json.loads(reply.body)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "/v1/models: not a list of models"
    if model in names:
        return None
    served = ", ".join(map(repr, names)) or "no model"
    served = served if len(served) <= _SHOWN_CHARS else served[:_SHOWN_CHARS] + "…"
    message = f"the server serves {served} instead of {model!r}"
    raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.READY, message)


def _refuse_other_listener(process: StartedProcess, host: str, port: int) -> None:
    """Return if the process or a descendant listens on the port, or /proc does not show who does.

    Raises:
        TrialFailed: `PORT_TAKEN`, if another process is proved to listen.
    """
    for _ in range(_LOOKS):
        family = {process.identity, *process.descendants()}
        ours, complete = _any_listens((member.pid for member in family), port)
        if ours or not complete or not any_process_listens(port):
            return
    if process.alive():
        message = f"{host}:{port} is answered by a process that this trial did not start"
        raise trial_failed(FailureKind.PORT_TAKEN, Phase.READY, message)


def _any_listens(pids: Iterable[int], port: int) -> tuple[bool, bool]:
    """Return whether one of the processes listens on the port, and whether the sockets of all of them are readable."""
    complete = True
    for pid in pids:
        try:
            connections = psutil.Process(pid).net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            complete = False
            continue
        if any(_listens(connection, port) for connection in connections):
            return True, complete
    return False, complete


def any_process_listens(port: int) -> bool:
    """Return whether /proc shows a process of any user that listens on the TCP port, over IPv4 or IPv6."""
    return any(_listens(connection, port) for connection in psutil.net_connections(kind="tcp"))


def _listens(connection: Any, port: int) -> bool:
    return bool(connection.status == psutil.CONN_LISTEN and connection.laddr.port == port)
