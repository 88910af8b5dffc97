"""Start a server that is on record before it runs, keep its log small, and end it with everything that it started.

A gate process (`/bin/sh`, which waits for a line on a pipe) has the id, group and start time that the server will have.
Its record goes to disk; then the line is written and the gate becomes the server by `exec`. If the tuner ends in
between, the gate reads the end of the pipe and exits. No server ever runs without a record.

The server has a process group of its own but stays in the tuner's session: Linux shares the CPU between sessions
(`sched_autogroup_enabled`). Where cores are scarce, vLLM's spinning threads keep a benchmark client of another session
off the CPU for up to 1.5 s at a time, which shows as TTFT.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from records.trials import FailureKind, Phase
from tuner.cancellation import CancelToken
from tuner.errors import trial_failed
from tuner.files import given_umask
from tuner.processes.family import MARK, Identity, end_family, find_family, mapped_segments, read_process
from tuner.processes.records import ProcessRecord, ProcessRecords

_GATE = 'read -r _ || exit 125; exec "$@" </dev/null'


class ServerProcess:
    """A started process that leads its own group. `stop` must be called in any case and may be called twice.

    The process is not reaped before `stop`, so that its id is not recycled while this object is in use. `reap` waits
    for its end and reaps it.
    """

    def __init__(self, reap: Callable[[], object], record: ProcessRecord, records: ProcessRecords) -> None:
        self.identity = record.process
        self._reap = reap
        self._record = record
        self._records = records
        self._members_seen: set[Identity] = {record.process}
        self._segments_seen: set[Path] = set()
        self._exit_code: int | None = None
        self._stopped = False
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        """The process id, which is also that of its group."""
        return self.identity.pid

    def alive(self) -> bool:
        """Return True while the process itself runs, whether or not its children do."""
        state = read_process(self.pid)
        return not self._stopped and state is not None and state.alive and state.identity == self.identity

    def exit_code(self) -> int | None:
        """Return the exit code, -N for signal N; None while it runs, or if another part of this process reaped it."""
        with self._lock:
            if self._exit_code is None and not self._stopped:
                self._exit_code = _exit_code_of(self.pid)
            return self._exit_code

    def descendants(self) -> set[Identity]:
        """Return the living processes that this one started, directly or not, in its group or out of it."""
        return self._family() - {self.identity}

    def record_family(self) -> None:
        """Write the present descendants and the shared memory seen so far to the record on disk.

        To be called while the server starts and once it is ready: after the death of every process that had mapped a
        segment, nothing else shows whose it was.
        """
        with self._lock:
            if self._stopped:
                return
            family = self._family()
            self._segments_seen |= mapped_segments(member.pid for member in family)
            self._record = self._records.update(self._record, family - {self.identity}, self._segments_seen)

    def stop(self, timeout_s: float = 30.0, cancelled: CancelToken | None = None) -> list[Identity]:
        """End the process and everything that it started; return the survivors, normally none.

        SIGTERM goes to the whole family. The leader has `timeout_s` seconds, or at most `STOP_S` once `cancelled` is
        set; then the family gets SIGKILL. With 0 seconds there is no SIGTERM. The record is removed if there are no
        survivors; otherwise it stays, and the next command ends them.
        """
        with self._lock:
            if self._stopped:
                return []
            survivors = sorted(end_family(self._family, self.identity, timeout_s, self._segments_seen, cancelled))
            if self.identity not in survivors:
                self.exit_code()
                self._reap()
            if not survivors:
                self._stopped = True
                self._records.remove(self._record)
            return survivors

    def _family(self) -> set[Identity]:
        with self._lock:
            if self._stopped:
                return set()
            members = find_family(self.identity, self._record.mark, self._members_seen)
            self._members_seen |= members
            return members


def start_server(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log_path: Path,
    cwd: Path,
    records: ProcessRecords,
    port: int | None,
    label: str,
) -> ServerProcess:
    """Start `argv` in a process group of its own; output is appended to `log_path`, standard input is empty.

    A program that does not exist gives exit code 127 and a line in the log.

    Args:
        argv: the program and its arguments.
        environment: the whole environment; the mark is added to it, and `/bin/sh` may add PWD.
        log_path: the file for standard output and error.
        cwd: the working folder.
        records: where the process is recorded.
        port: the port that it will listen on, for the record.
        label: study and trial, for the record.

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
                umask=given_umask(),  # others may share the caches that it fills, such as that of a hub
            )
        record = _record_and_open_gate(popen, mark, records, port, tuple(argv), label)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"no space left to start a server (log {log_path}, records {records.folder}): {error}"
            raise trial_failed(FailureKind.DISK_FULL, Phase.LAUNCH, message) from error
        raise
    return ServerProcess(popen.wait, record, records)


def _record_and_open_gate(
    popen: subprocess.Popen[bytes],
    mark: str,
    records: ProcessRecords,
    port: int | None,
    argv: tuple[str, ...],
    label: str,
) -> ProcessRecord:
    gate = popen.stdin
    state = read_process(popen.pid)
    if gate is None or state is None:
        raise OSError(f"the process {popen.pid} that was just started is not in /proc")
    try:
        record = records.add(mark, state.identity, port, argv, label)
    except OSError:
        gate.close()
        popen.wait()
        raise
    try:
        gate.write(b"\n")
        gate.close()
    except BrokenPipeError:
        pass  # the gate was killed from outside: `exit_code` returns its exit code
    return record


def _exit_code_of(pid: int) -> int | None:
    """Return the exit code of a child that ended, without reaping it; None if it runs or is not a child."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


KEPT_BYTES = 2**20
"""Bytes that are kept at each end of a log once its process has ended."""

RUNNING_KEPT_BYTES = 2**24
"""Bytes that are kept at each end while the process runs; failures are read from the first and the last 2 MB."""

_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01


def shorten_log(path: Path, redact: Callable[[bytes], bytes]) -> None:
    """Replace the log of a process that has ended by its beginning, its end and a line that says what was cut.

    A file that cannot be read or written stays as it is.

    Args:
        path: the log.
        redact: returns bytes without secrets.
    """
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_file():
            return
        old = path.stat().st_size
        text = _ends(path) if old > 2 * KEPT_BYTES else path.read_bytes()
        new = redact(text)
        if len(text) == old and new == text:
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(new)
            temporary.chmod(path.stat().st_mode & 0o777)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _ends(path: Path) -> bytes:
    """Return the whole lines at both ends of a long log, and between them how much was cut."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(KEPT_BYTES)
        file.seek(size - KEPT_BYTES)
        tail = file.read(KEPT_BYTES)
    head = head[: head.rfind(b"\n") + 1] or head + b"\n"
    tail = tail[tail.find(b"\n") + 1 :] or tail
    cut = size - len(head) - len(tail)
    return head + f"[tuner: {cut:,} bytes of this log were cut here]\n".encode() + tail


def free_middle(path: Path) -> None:
    """Return the disk space of a growing log's middle to the system; its length and both ends stay.

    The process appends to the file meanwhile. File systems that cannot do this leave the log as it is.
    """
    with contextlib.suppress(OSError, AttributeError):
        if path.stat().st_size <= 4 * RUNNING_KEPT_BYTES or path.stat().st_blocks * 512 <= 3 * RUNNING_KEPT_BYTES:
            return
        with path.open("r+b") as file:
            length = file.seek(0, os.SEEK_END) - 2 * RUNNING_KEPT_BYTES
            mode = ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE)
            start, count = ctypes.c_int64(RUNNING_KEPT_BYTES), ctypes.c_int64(length)
            ctypes.CDLL(None).fallocate64(ctypes.c_int(file.fileno()), mode, start, count)
