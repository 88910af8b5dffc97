"""Start a server so that it is on record before it runs, and end it with everything that it started.

A gate process (`/bin/sh`, waiting for a line on a pipe) already has the id, group and start time that the server will
have. Its record goes to disk, then the line is written and the gate becomes the server by `exec`. If the tuner dies in
between, the gate reads the end of the pipe and exits: no server ever runs without a record.

A group of its own, and not a session: Linux shares the CPU out between sessions (`sched_autogroup_enabled`), and a
benchmark client in another session than the server is then kept off the CPU for up to 1.5 s at a time by vLLM's
spinning threads, wherever cores are scarce. Seen as TTFT on two cores; gone with client and server in one session.
"""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from storage.records import FailureKind, Phase
from tuner.errors import trial_failed
from tuner.processes.family import MARK, Identity, end, family, look
from tuner.processes.records import ProcessRecord, ProcessRecords

_GATE = 'read -r _ || exit 125; exec "$@" </dev/null'


class Waitable(Protocol):
    """What reaps the process; `subprocess.Popen` is one."""

    def wait(self) -> int | None:
        """Wait for the end of the process and reap it."""


class ServerProcess:
    """A started process that leads its own group. `stop` must be called whatever happens; it may be called twice.

    The process is not reaped before `stop`, so its id cannot be recycled while anybody holds this object.
    """

    def __init__(self, popen: Waitable, record: ProcessRecord, registry: ProcessRecords) -> None:
        self.identity = record.process
        self.log_label = record.label
        self._popen = popen
        self._record = record
        self._registry = registry
        self._known: set[Identity] = {record.process}
        self._exit_code: int | None = None
        self._stopped = False
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        """The process id, which is also that of its group."""
        return self.identity.pid

    @property
    def pgid(self) -> int:
        """The id of the process group."""
        return self.identity.pid

    def alive(self) -> bool:
        """Return True while the process itself runs, whatever its children do."""
        seen = look(self.pid)
        return not self._stopped and seen is not None and seen.alive and seen.identity == self.identity

    def exit_code(self) -> int | None:
        """Return the exit code, -N for signal N; None while it runs, or if somebody else reaped it."""
        with self._lock:
            if self._exit_code is None and not self._stopped:
                self._exit_code = _peek(self.pid)
            return self._exit_code

    def descendants(self) -> set[Identity]:
        """Return the living processes that this one started, directly or not, in its group or out of it."""
        return self._family() - {self.identity}

    def remember(self) -> None:
        """Take a snapshot of the descendants and add it to the record on disk: call it once the server is ready."""
        with self._lock:
            if not self._stopped:
                self._record = self._registry.remember(self._record, self.descendants())

    def stop(self, timeout_s: float = 30.0) -> list[Identity]:
        """End the process and all that it started; return who is left, normally nobody.

        SIGTERM goes to the whole family, its leader has `timeout_s` seconds, then SIGKILL. With 0 there is no SIGTERM.
        The record is removed once nobody is left; otherwise it stays for the next start.
        """
        with self._lock:
            if self._stopped:
                return []
            survivors = sorted(end(self._family, self.identity, timeout_s).survivors)
            if self.identity not in survivors:
                self.exit_code()
                self._popen.wait()
            if not survivors:
                self._stopped = True
                self._registry.remove(self._record)
            return survivors

    def _family(self) -> set[Identity]:
        with self._lock:
            if self._stopped:
                return set()
            members = family(self.identity, self._record.mark, self._known)
            self._known |= members
            return members


def start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log_path: Path,
    cwd: Path,
    registry: ProcessRecords,
    port: int | None,
    label: str,
) -> ServerProcess:
    """Start `argv` in a process group of its own; output is appended to `log_path`, standard input is empty.

    `environment` is the whole environment; the mark is added to it, and `/bin/sh` may add PWD. A program that is not
    there gives exit code 127 and a line in the log.

    Raises:
        TrialFailed: `DISK_FULL`, if the log or the record cannot be written for lack of space.
        OSError: if they cannot be written for another reason.
    """
    mark = uuid.uuid4().hex
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            popen = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, "gate", *argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**environment, MARK: mark},
                process_group=0,
            )
        record = _release(popen, mark, registry, port, tuple(argv), label)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"no space left to start a server (log {log_path}, records {registry.folder}): {error}"
            raise trial_failed(FailureKind.DISK_FULL, Phase.LAUNCH, message) from error
        raise
    return ServerProcess(popen, record, registry)


def _release(
    popen: subprocess.Popen[bytes],
    mark: str,
    registry: ProcessRecords,
    port: int | None,
    argv: tuple[str, ...],
    label: str,
) -> ProcessRecord:
    gate = popen.stdin
    seen = look(popen.pid)
    if gate is None or seen is None:
        raise OSError(f"the process {popen.pid} that was just started is not in /proc")
    try:
        record = registry.record(mark, seen.identity, port, argv, label)
    except OSError:
        gate.close()
        popen.wait()
        raise
    try:
        gate.write(b"\n")
        gate.close()
    except BrokenPipeError:
        pass  # the gate was killed from outside: the caller sees its exit code
    return record


def _peek(pid: int) -> int | None:
    """Return the exit code of a child without reaping it."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
