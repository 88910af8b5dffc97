"""Run vLLM's commands through the resident helper, which imports vLLM once; a server starts as a fork of it.

On a GPU, vLLM also forks its engine's processes (`VLLM_WORKER_MULTIPROC_METHOD`, which it supports and its command sets
to `spawn`). That saves the same imports once more. Several API servers are forked, too, for which vLLM has no setting:
see `resident/api_servers.py`. Without a GPU, vLLM requires `spawn` for its engine.

A forked server differs from the command in one respect: its modules were imported in the helper's environment.
`can_fork` states when that has no effect. If a forked server does not start and the cause is unknown, it is started
once more, as the command (`CommandStart`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records.trials import FailureKind
from tuner.engines.server.program_engine import ServerStart
from tuner.files import given_umask
from tuner.processes.family import MARK, read_process
from tuner.processes.records import ProcessRecord, ProcessRecords
from tuner.processes.supervisor import ServerProcess

HELPER = Path(__file__).parent / "resident" / "helper.py"


class ResidentJob:
    """One request to the helper."""

    def __init__(self, number: int, resident: ResidentHelper) -> None:
        self.number = number
        self.pid: int | None = None
        self._resident = resident
        self._started = threading.Event()
        self._done = threading.Event()
        self._exit_code: int | None = None

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    @property
    def exit_code(self) -> int | None:
        return self._exit_code

    def cancel(self) -> None:
        if not self._done.is_set():
            self._resident.send({"id": self.number, "op": "cancel"})
            self._done.wait(_CANCEL_S)

    def wait_started(self, timeout_s: float) -> int | None:
        """Wait until the child is forked and return its process id; None if `timeout_s` seconds pass first."""
        self._started.wait(timeout_s)
        return self.pid

    def release(self) -> None:
        """Open the gate of a child that was started with `hold`."""
        self._resident.send({"id": self.number, "op": "release"})

    def reap(self) -> None:
        """Reap a child that was started with `hold` and has ended, so that its id is free."""
        self._resident.send({"id": self.number, "op": "reap"})

    def mark_started(self, pid: int) -> None:
        """Store the process id; only `ResidentHelper` calls this."""
        self.pid = pid
        self._started.set()

    def mark_ended(self, exit_code: int | None) -> None:
        """Store the exit code; only `ResidentHelper` calls this."""
        self._exit_code = exit_code
        self._done.set()
        self._started.set()


_CANCEL_S = 10.0
_CLOSE_S = 5.0


class ResidentHelper:
    """A process of vLLM's interpreter that imports vLLM once (8–15 s) and runs each command in a fork of itself.

    The constructor starts it and returns; the import continues in the background. The helper ends with `close` or with
    this process, also after kill -9.
    """

    def __init__(self, interpreter: Path, log: Path, environment: Mapping[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.environment = dict(environment)
        self._popen = subprocess.Popen(
            [interpreter, HELPER, log],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment,
            process_group=0,
            umask=given_umask(),  # that of the servers which it forks
        )
        self.greeting: dict[str, Any] = {}
        self._greeted = threading.Event()
        self._jobs: dict[int, ResidentJob] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._lost = False
        self._reader = threading.Thread(target=self._read, name="vllm-resident", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The helper's process id."""
        return self._popen.pid

    @property
    def device_touched(self) -> bool:
        """Whether the import of vLLM opened the device; a fork of the helper could not use it then."""
        return bool(self.greeting.get("device_touched"))

    def ready(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds until vLLM is imported; return whether the helper is ready."""
        self._greeted.wait(timeout_s)
        return bool(self.greeting) and not self._lost

    def run(self, task: str, log: Path, **request: object) -> ResidentJob:
        """Start a task: `info`, `check`, `prompts` or `cli`. Without a helper, the job has ended without exit code."""
        with self._lock:
            job = ResidentJob(next(self._numbers), self)
            if self._lost:
                job.mark_ended(None)
                return job
            self._jobs[job.number] = job
        self.send({"id": job.number, "op": "run", "task": task, "log": os.fspath(log), **request})
        return job

    def send(self, message: Mapping[str, object]) -> None:
        """Write one request; does nothing if the helper has ended."""
        stdin = self._popen.stdin
        assert stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()

    def close(self) -> None:
        """End the helper and the commands that it runs; may be called twice."""
        stdin = self._popen.stdin
        assert stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError):
            stdin.close()
        try:
            self._popen.wait(_CLOSE_S if self.greeting else 0)
        except subprocess.TimeoutExpired:
            self._popen.kill()  # its children are killed with it
            self._popen.wait()
        self._reader.join(_CLOSE_S)

    def _read(self) -> None:
        stdout = self._popen.stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                self._handle(json.loads(line))
        with self._lock:
            self._lost = True
            jobs = list(self._jobs.values())
            self._jobs.clear()
        for job in jobs:
            job.mark_ended(None)
        self._greeted.set()

    def _handle(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "ready":
            self.greeting = message
            self._greeted.set()
            return
        with self._lock:
            job = self._jobs.get(message["id"])
            if event == "done":
                self._jobs.pop(message["id"], None)
        if job is not None and event == "started":
            job.mark_started(message["pid"])
        elif job is not None:
            job.mark_ended(message["exit_code"])


FORK_S = 60.0
_REAP_S = 30.0

MULTIPROC_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"

READ_LATE = frozenset(
    {
        MULTIPROC_METHOD,
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_CPU_NUM_OF_RESERVED_CPU",
        "VLLM_USE_AOT_COMPILE",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "VLLM_USE_FLASHINFER_SAMPLER",
        "VLLM_USE_DEEP_GEMM",
        "VLLM_MARLIN_INPUT_DTYPE",
    }
)
"""Variables that are read after the fork, by the server or by the engine's processes."""


def can_fork(server: Mapping[str, str], helper: Mapping[str, str]) -> bool:
    """Return whether a fork of a helper with one environment equals a server that starts with the other."""
    changed = {name for name in {*server, *helper} if server.get(name) != helper.get(name)}
    return changed <= READ_LATE


RETRIED_AS_COMMAND = frozenset({FailureKind.ENGINE_CRASH, FailureKind.STARTUP_TIMEOUT})
"""Failures of a start that the fork itself may have caused. The configuration or the machine causes the others."""


@dataclass(frozen=True)
class CommandStart:
    """The start as the command after a failed fork; `on_success` is called once that server is ready."""

    start: Callable[[], ServerProcess]
    on_success: Callable[[], None]


class ForkedServerProcess(ServerProcess):
    """A `ServerProcess` that is the helper's child. It ends with the helper, which ends with the tuner."""

    def __init__(self, job: ResidentJob, record: ProcessRecord, records: ProcessRecords) -> None:
        super().__init__(self._reap_by_helper, record, records)
        self._job = job

    def _reap_by_helper(self) -> None:
        self._job.wait(_REAP_S)
        self._job.reap()

    def exit_code(self) -> int | None:
        if not self.alive():
            self._job.wait(_REAP_S)
        return self._job.exit_code


def start_forked(resident: ResidentHelper, start: ServerStart) -> ServerProcess | None:
    """Start a server as a fork; return None if the helper cannot. The record is on disk before the server runs.

    Raises:
        OSError: if the record cannot be written.
    """
    mark = uuid.uuid4().hex
    variables, cwd = {MULTIPROC_METHOD: "fork", **start.environment, MARK: mark}, os.fspath(start.folder)
    job = resident.run("cli", start.log, argv=list(start.words[1:]), environment=variables, cwd=cwd, hold=True)
    pid = job.wait_started(FORK_S)
    state = read_process(pid) if pid is not None else None
    if state is None:
        job.cancel()
        return None
    try:
        record = start.records.add(mark, state.identity, start.port, start.words, start.label)
    except OSError:
        job.cancel()
        job.reap()
        raise
    job.release()
    return ForkedServerProcess(job, record, start.records)
