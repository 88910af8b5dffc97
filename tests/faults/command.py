"""Real `tuner optimize` processes on one study, for tests that kill them and look at what is left.

What a command started is told by ids, never by names: all its descendants seen so far, and every process that has its
TUNER_HOME, a folder of this test alone, in its environment (Ray and vLLM write over theirs, hence both).
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from storage import normalise_url, open_store
from storage.mapping import FailedAttempt
from storage.records import TrialRecord
from storage.store import Store
from tuner.processes.identity import Identity, is_alive, read_process
from tuner.processes.records import ProcessRecord, ProcessRecords

STUDY = "faults"
DEADLINE_S = 240.0
"""Of every wait: far more than a busy machine of two cores needs."""

Found = TypeVar("Found")


def until(find: Callable[[], Found], what: str, running: Command | None = None) -> Found:
    """Wait until `find` gives something true and return that; fail after the deadline, or if the command ends first."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := find()):
        if running is not None and running.popen.poll() is not None and not (found := find()):
            raise AssertionError(f"the command ended before: {what}\n{running.output()}")
        assert time.monotonic() < deadline, f"waited in vain: {what}\n{running.output() if running else ''}"
        time.sleep(0.02)
    return found


class Command:
    """One running command in a session of its own, as a terminal gives it a process group."""

    def __init__(self, arguments: Sequence[str], folder: Path, environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tuner.cli.main", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        self.started: set[Identity] = set()

    def output(self) -> str:
        """Return what it printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def note_descendants(self) -> set[Identity]:
        """Remember and return the descendants that it has now."""
        try:
            children = psutil.Process(self.popen.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        seen = {child.identity for child in (read_process(each.pid) for each in children) if child is not None}
        self.started |= seen
        return seen

    def kill(self) -> None:
        """Kill -9 the driver, and only that."""
        self.note_descendants()
        self.popen.kill()
        self.popen.wait(DEADLINE_S)

    def interrupt(self) -> None:
        """Do what Ctrl-C in a terminal does: SIGINT to the whole foreground group."""
        self.note_descendants()
        os.killpg(self.popen.pid, signal.SIGINT)

    def end(self) -> int:
        """Wait for its end and return the exit code."""
        return self.popen.wait(DEADLINE_S)


class Study:
    """A study's folder, its commands, and what its records say."""

    def __init__(self, folder: Path, vllm: Path, model: Path, arguments: Sequence[str], **environment: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.commands: list[Command] = []
        self._arguments = ("optimize", "--vllm", str(vllm), "--model", str(model), "--study", STUDY, *arguments)
        self._environment = {**os.environ, **environment, "TUNER_HOME": str(self.home)}
        self._environment.pop("MLFLOW_TRACKING_URI", None)
        self._database = folder / "tuner_study" / "tuner.db"

    def start(self) -> Command:
        """Start the command; it is the same each time."""
        log = self.folder / f"output-{len(self.commands)}.txt"
        command = Command(self._arguments, self.folder, self._environment, log)
        self.commands.append(command)
        return command

    def records(self) -> dict[tuple[int, int], TrialRecord]:
        """Return the trials and re-measurements by number and round; none as long as there is no database."""
        if not self._database.is_file():
            return {}
        found = self._read(lambda store: store.trials(STUDY) if store.studies() else [])
        return {(record.number, record.round): record for record in found}

    def finished(self) -> dict[tuple[int, int], TrialRecord]:
        """Return those that have an outcome."""
        return {key: record for key, record in self.records().items() if record.outcome is not None}

    def failed_attempts(self) -> list[FailedAttempt]:
        """Return the attempts that were retried."""
        return self._read(lambda store: store.failed_attempts(STUDY))

    def _read(self, ask: Callable[[Store], list[Found]]) -> list[Found]:
        store = open_store(normalise_url(str(self._database)))
        try:
            return ask(store)
        finally:
            store.close()

    def artifacts(self, uid: str) -> Path:
        """Return the folder of one attempt's files."""
        return self.folder / "tuner_study" / "artifacts" / STUDY / uid

    def servers(self) -> list[ProcessRecord]:
        """Return the registry's records: one a server that runs or was left."""
        return ProcessRecords(self.home / "processes").all()

    def server(self, uid: str, command: Command) -> ProcessRecord:
        """Wait until an attempt is in its scored benchmark and return its server's record."""
        until((self.artifacts(uid) / "bench-0.log").exists, f"the benchmark of {uid}", command)
        [record] = [record for record in self.servers() if record.label.endswith(f"trial {uid}")]
        command.note_descendants()
        return record

    def left(self) -> set[Identity]:
        """Return the living processes that any of the commands, not counting the commands, has left."""
        mark = f"TUNER_HOME={self.home}".encode()
        found = {identity for command in self.commands for identity in command.started if is_alive(identity)}
        for name in os.listdir("/proc"):
            seen = read_process(int(name)) if name.isdecimal() else None
            if seen is not None and seen.alive and mark in _environment_of(seen.identity.pid):
                found.add(seen.identity)
        return found - {identity for identity in found if identity.pid in self._drivers()}

    def _drivers(self) -> set[int]:
        return {command.popen.pid for command in self.commands if command.popen.poll() is None}

    def assert_nothing_left(self) -> None:
        """Check that no process, record or temporary folder outlives the commands."""
        until(lambda: not self.left(), f"the end of {_named(self.left())}")
        assert self.servers() == []
        owners = {str(command.popen.pid) for command in self.commands}
        owners |= {str(identity.pid) for command in self.commands for identity in command.started}
        folders = Path(tempfile.gettempdir()).glob("tuner-*-*-*")
        assert [folder for folder in folders if folder.name.split("-")[2] in owners] == []

    def assert_logged_once(self) -> None:
        """Check that MLflow has exactly one run a trial, ended, under the study's one."""
        with sqlite3.connect(self.folder / "tuner_study" / "mlflow.db") as database:
            trials = database.execute("select value, run_uuid from tags where key = 'tuner.trial'").fetchall()
            nested = database.execute("select run_uuid from tags where key = 'mlflow.parentRunId'").fetchall()
            unended = database.execute("select run_uuid from runs where end_time is null").fetchall()
            total = database.execute("select count(*) from runs").fetchone()
        found = Counter(value.rpartition("/")[2] for value, _ in trials)
        assert found == Counter(f"{number}r{round}" for number, round in self.finished())
        runs = {run for _, run in trials}
        assert not runs & {run for (run,) in unended}
        assert total == (len(trials) + 1,)
        assert {run for (run,) in nested} == runs

    def close(self) -> None:
        """End whatever a failed test has left, by id."""
        for command in self.commands:
            command.note_descendants()
            if command.popen.poll() is None:
                command.kill()
        for identity in self.left():
            os.kill(identity.pid, signal.SIGKILL)


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _named(identities: set[Identity]) -> str:
    """Return processes with their command lines, for a message."""
    lines = []
    for identity in sorted(identities):
        try:
            words = Path(f"/proc/{identity.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            words = "gone"
        lines.append(f"{identity.pid} {words[:120]}")
    return "; ".join(lines)
