"""Helpers for tests that start processes: wait for a condition, run a program of this Python, end what a test left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from records.trials import Failure, FailureKind, Phase
from tuner.processes.family import Identity, read_process, send_signal
from tuner.processes.records import ProcessRecords
from tuner.processes.supervisor import ServerProcess, start_server
from tuner.processes.watchdog import PROGRAM

ROOT = Path(__file__).parents[3]


def until(condition: Callable[[], object], timeout_s: float = 120.0) -> None:
    """Wait until the condition is true.

    Raises:
        AssertionError: if it is not after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the condition did not come true in time")
        time.sleep(0.01)


def python(code: str) -> list[str]:
    """Return the command that runs `code` with this Python, quickly."""
    return [sys.executable, "-S", "-c", code]


def watchdogs(folder: Path) -> set[Identity]:
    found = set()
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if str(PROGRAM) in words and str(folder) in words and words[0] != "/bin/sh":
            state = read_process(process.pid)
            found |= {state.identity} if state is not None and state.alive else set()
    return found


OWNER = """
import json, os, sys, time
from pathlib import Path
from tuner.processes.family import Identity
from tuner.processes.supervisor import start_server
from tuner.processes.records import ProcessRecords

here, program, driver = Path(sys.argv[1]), sys.argv[2], Identity(*json.loads(sys.argv[3]))
argv = [program, "serve", "m", "--port", "0"]
records = ProcessRecords(here / "processes", driver)
process = start_server(argv, dict(os.environ), here / "log", here, records, 0, "study/7")
while "startup complete" not in (here / "log").read_text():
    time.sleep(0.01)
print(json.dumps([process.identity, *process.descendants()]), flush=True)
time.sleep(600)
"""
"""Runs a server under a driver: arguments are its folder, the program, and the driver's identity."""


@contextmanager
def owner(code: str, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], set[Identity]]]:
    """Run a worker; yield it and the processes that it has started."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdout is not None
        started = {Identity(*pair) for pair in json.loads(popen.stdout.readline())}
        try:
            yield popen, started
        finally:
            popen.kill()
            for identity in started:
                send_signal(identity, signal.SIGKILL)


@contextmanager
def driver() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "600"]) as popen:
        yield popen
        popen.kill()


def identity_of(pid: int) -> Identity:
    state = read_process(pid)
    assert state is not None
    return state.identity


def classify(phase: Phase, exit_code: int | None) -> Failure:
    return Failure(FailureKind.ENGINE_CRASH, phase, "it died", exit_code=exit_code)


class Starter:
    """Starts processes in one folder and ends them all at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = ProcessRecords(folder / "processes")
        self.log = folder / "server.log"
        self._started: list[ServerProcess] = []

    def __call__(self, *argv: str, port: int | None = None, **environment: str) -> ServerProcess:
        variables = {**os.environ, **environment}
        process = start_server(argv, variables, self.log, self.folder, self.records, port, "study/1")
        self._started.append(process)
        return process

    def output(self) -> str:
        """Return what the processes printed so far."""
        return self.log.read_text()

    def close(self) -> None:
        """End everything."""
        for process in self._started:
            process.stop(0)
