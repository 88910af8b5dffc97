"""The tuner's side of the resident helper, and the plain command that stands in for it.

Both run `vllm ARGV…` in a process of its own that logs to a file, and give a `HelperJob`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

HELPER = Path(__file__).parent / "resident" / "helper.py"


class HelperJob(Protocol):
    """One run of a vLLM command."""

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds for its end; return whether it ended."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, -N for signal N; None while it runs, or if it was lost with its helper."""

    def cancel(self) -> None:
        """Kill it with all that it started, and wait until it is gone."""


class PlainJob:
    """The command itself, started as a user would."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path) -> None:
        with log.open("ab") as file:
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=cwd,
                process_group=0,
            )

    def wait(self, timeout_s: float) -> bool:
        """See `HelperJob`."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def exit_code(self) -> int | None:
        """See `HelperJob`."""
        return self._popen.returncode

    def cancel(self) -> None:
        """See `HelperJob`."""
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()


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
        """See `HelperJob`."""
        return self._done.wait(timeout_s)

    @property
    def exit_code(self) -> int | None:
        """See `HelperJob`."""
        return self._exit_code

    def cancel(self) -> None:
        """See `HelperJob`."""
        if not self._done.is_set():
            self._resident.send({"id": self.number, "op": "cancel"})
            self._done.wait(_CANCEL_S)

    def wait_started(self, timeout_s: float) -> int | None:
        """Wait until the child is there and return its process id; None if it is not in time."""
        self._started.wait(timeout_s)
        return self.pid

    def release(self) -> None:
        """Let a child that was started with `hold` run."""
        self._resident.send({"id": self.number, "op": "release"})

    def reap(self) -> None:
        """Let the id of a child that was started with `hold`, and has ended, be used again."""
        self._resident.send({"id": self.number, "op": "reap"})

    def begin(self, pid: int) -> None:
        """Note that it started; for the resident only."""
        self.pid = pid
        self._started.set()

    def end(self, exit_code: int | None) -> None:
        """Note that it ended; for the resident only."""
        self._exit_code = exit_code
        self._done.set()
        self._started.set()


_CANCEL_S = 10.0
_CLOSE_S = 5.0


class ResidentHelper:
    """A helper in vLLM's interpreter: imports vLLM once (8–15 s), then runs each command in a fork of itself.

    It starts at once and imports in the background. It ends with this object or with this process, whatever ends it.
    """

    def __init__(self, interpreter: Path, log: Path, environment: Mapping[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._popen = subprocess.Popen(
            [interpreter, HELPER, log],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            process_group=0,
        )
        self.hello: dict[str, Any] = {}
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
        """Whether importing vLLM opened the device, which a fork of the helper could then not use."""
        return bool(self.hello.get("device_touched"))

    def ready(self, timeout_s: float) -> bool:
        """Wait until vLLM is imported, at most `timeout_s` seconds; return False if it is not or the helper ended."""
        self._greeted.wait(timeout_s)
        return bool(self.hello) and not self._lost

    def run(self, task: str, log: Path, **request: object) -> ResidentJob:
        """Start a task: `info`, `check` or `cli`; a lost helper gives a job that has ended without an exit code."""
        with self._lock:
            job = ResidentJob(next(self._numbers), self)
            if self._lost:
                job.end(None)
                return job
            self._jobs[job.number] = job
        self.send({"id": job.number, "op": "run", "task": task, "log": os.fspath(log), **request})
        return job

    def send(self, message: Mapping[str, object]) -> None:
        """Write one request; nothing happens if the helper is gone, its jobs have ended then."""
        stdin = self._popen.stdin
        assert stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()

    def close(self) -> None:
        """End the helper and what it runs; may be called twice."""
        stdin = self._popen.stdin
        assert stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError):
            stdin.close()
        try:
            self._popen.wait(_CLOSE_S if self.hello else 0)
        except subprocess.TimeoutExpired:
            self._popen.kill()  # its children are killed with it
            self._popen.wait()
        self._reader.join(_CLOSE_S)

    def _read(self) -> None:
        stdout = self._popen.stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                self._take(json.loads(line))
        with self._lock:
            self._lost = True
            jobs = list(self._jobs.values())
            self._jobs.clear()
        for job in jobs:
            job.end(None)
        self._greeted.set()

    def _take(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "ready":
            self.hello = message
            self._greeted.set()
            return
        with self._lock:
            job = self._jobs.get(message["id"])
            if event == "done":
                self._jobs.pop(message["id"], None)
        if job is not None and event == "started":
            job.begin(message["pid"])
        elif job is not None:
            job.end(message["exit_code"])
