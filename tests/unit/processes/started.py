"""Helpers for tests that start processes: wait for a condition, run a program of this Python, end what a test left."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tuner.processes.family import Identity, read_process
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
