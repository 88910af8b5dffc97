"""Run real `tuner optimize` commands on one study, for tests that kill processes and check what remains.

The processes of a command are found by ids, never by names: all its descendants that were seen, and every process that
has the test's own TUNER_HOME in its environment. Ray and vLLM overwrite their environment, so both are needed.
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
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

from records.trials import FailedAttempt, TrialRecord
from storage import normalise_url, open_store
from storage.store import Store
from tuner.processes.family import Identity, is_alive, read_process
from tuner.processes.records import ProcessRecord, ProcessRecords

STUDY = "faults"
DEADLINE_S = 600.0
"""Of every wait. A quiet machine of two cores needs less than 20 s."""

Result = TypeVar("Result")


def until(poll: Callable[[], Result], description: str, running: Command | None = None) -> Result:
    """Wait until `poll` returns a true value and return it.

    Raises:
        AssertionError: if `DEADLINE_S` seconds pass, or if the command ends first.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not (result := poll()):
        if running is not None and running.popen.poll() is not None and not (result := poll()):
            raise AssertionError(f"the command ended before: {description}\n{running.output()}")
        output = running.output() if running else ""
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s for: {description}\n{output}"
        time.sleep(0.02)
    return result


class Command:
    """One running command in a session of its own, as a terminal starts it."""

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
        self.descendants_seen: set[Identity] = set()

    def output(self) -> str:
        """Return what it has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def note_descendants(self) -> None:
        """Add its present descendants to those seen."""
        try:
            children = psutil.Process(self.popen.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        states = (read_process(child.pid) for child in children)
        self.descendants_seen |= {state.identity for state in states if state is not None}

    def kill(self) -> None:
        """Send SIGKILL to the driver only."""
        self.note_descendants()
        self.popen.kill()
        self.popen.wait(DEADLINE_S)

    def send(self, number: signal.Signals) -> int:
        """Send a signal as a user would and return the exit code: SIGINT, as Ctrl-C, goes to the whole group."""
        self.note_descendants()
        if number is signal.SIGINT:
            os.killpg(self.popen.pid, number)
        else:
            self.popen.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait until it ends and return the exit code."""
        return self.popen.wait(DEADLINE_S)


class Study:
    """A study's folder, its commands, and the contents of its database."""

    def __init__(
        self,
        folder: Path,
        vllm: Path,
        model: Path,
        arguments: Sequence[str],
        storage: str | None = None,
        **environment: str,
    ) -> None:
        self.folder = folder
        self.home = Path(environment.get("TUNER_HOME", folder / "home"))
        self.commands: list[Command] = []
        place = () if storage is None else ("--storage", storage)
        self._arguments = ("optimize", "--vllm", str(vllm), "--model", str(model), "--study", STUDY, *place, *arguments)
        inherited = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        self._environment = {**inherited, **environment, "TUNER_HOME": str(self.home)}
        self._storage = storage
        self._url = storage or normalise_url(str(folder / "tuner_study" / "tuner.db"))

    def start(self) -> Command:
        """Start the command; it is the same each time."""
        log = self.folder / f"output-{len(self.commands)}.txt"
        command = Command(self._arguments, self.folder, self._environment, log)
        self.commands.append(command)
        return command

    def sync(self) -> Command:
        """Start `tuner study sync`."""
        place = () if self._storage is None else ("--storage", self._storage)
        arguments = ("study", "sync", STUDY, *place)
        command = Command(arguments, self.folder, self._environment, self.folder / "sync.txt")
        self.commands.append(command)
        return command

    def records(self) -> dict[tuple[int, int], TrialRecord]:
        """Return the trials and re-measurements by number and round; none before there is a database."""
        if not (self.folder / "tuner_study").is_dir():
            return {}
        trials = self._read(lambda store: store.trials(STUDY) if store.studies() else [])
        return {(record.number, record.round): record for record in trials}

    def finished(self) -> dict[tuple[int, int], TrialRecord]:
        return {key: record for key, record in self.records().items() if record.outcome is not None}

    def failed_attempts(self) -> list[FailedAttempt]:
        return self._read(lambda store: store.failed_attempts(STUDY))

    def _read(self, query: Callable[[Store], list[Result]]) -> list[Result]:
        store = open_store(self._url)
        try:
            return query(store)
        finally:
            store.close()

    def artifacts(self, uid: str) -> Path:
        """Return the folder of one attempt's files."""
        return self.folder / "tuner_study" / "artifacts" / STUDY / uid

    def servers(self) -> list[ProcessRecord]:
        return ProcessRecords(self.home / "processes").all()

    def hold(self, uid: str) -> None:
        """Make the scored benchmark of an attempt of the fake vLLM last until the attempt is killed."""
        self.artifacts(uid).mkdir(parents=True, exist_ok=True)
        (self.artifacts(uid) / "hold").touch()

    def benchmarked_server(self, uid: str, command: Command) -> ProcessRecord:
        """Wait until an attempt is in its scored benchmark and return its server's record."""
        until((self.artifacts(uid) / "bench-0.log").exists, f"the benchmark of {uid}", command)
        [record] = [record for record in self.servers() if record.label.endswith(f"trial {uid}")]
        command.note_descendants()
        return record

    def running(self) -> set[Identity]:
        """Return the living processes that the commands started, without the commands themselves."""
        mark = f"TUNER_HOME={self.home}".encode()
        found = {identity for command in self.commands for identity in command.descendants_seen if is_alive(identity)}
        for name in os.listdir("/proc"):
            state = read_process(int(name)) if name.isdecimal() else None
            if state is not None and state.alive and mark in _environment_of(state.identity.pid):
                found.add(state.identity)
        drivers = {command.popen.pid for command in self.commands if command.popen.poll() is None}
        return {identity for identity in found if identity.pid not in drivers}

    def leftovers(self) -> list[str]:
        """Wait until nothing of the ended commands runs, then return the process records and temporary folders left.

        Raises:
            AssertionError: if a process still runs after `DEADLINE_S` seconds.
        """
        until(lambda: not self.running(), f"the end of {described(self.running())}")
        return [*(record.label for record in self.servers()), *self.folders()]

    def folders(self) -> list[str]:
        """Return the temporary folders of the commands and of their descendants."""
        owners = {str(command.popen.pid) for command in self.commands}
        owners |= {str(identity.pid) for command in self.commands for identity in command.descendants_seen}
        folders = Path(tempfile.gettempdir()).glob("tuner-*-*-*")
        return [str(folder) for folder in folders if folder.name.split("-")[2] in owners]

    def mlflow_problems(self, database_file: Path | None = None) -> list[str]:
        """Return how MLflow differs from exactly one ended run per finished trial under the study's run.

        Args:
            database_file: of MLflow's server; None: the study's own.
        """
        with sqlite3.connect(database_file or self.folder / "tuner_study" / "mlflow.db") as database:
            trials = database.execute("select value, run_uuid from tags where key = 'tuner.trial'").fetchall()
            nested = database.execute("select run_uuid from tags where key = 'mlflow.parentRunId'").fetchall()
            unended = database.execute("select run_uuid from runs where end_time is null").fetchall()
            ((total,),) = database.execute("select count(*) from runs").fetchall()
        logged = Counter(value.rpartition("/")[2] for value, _ in trials)
        finished = Counter(f"{number}r{round}" for number, round in self.finished())
        runs = {run for _, run in trials}
        checks = {
            f"logged {logged}, finished {finished}": logged == finished,
            "a trial's run has not ended": not runs & {run for (run,) in unended},
            f"{total} runs for {len(trials)} trials and the study": total == len(trials) + 1,
            "a trial's run is not under the study's": {run for (run,) in nested} == runs,
        }
        return [problem for problem, holds in checks.items() if not holds]

    def close(self) -> None:
        """Kill what a failed test has left, by id."""
        for command in self.commands:
            command.note_descendants()
            if command.popen.poll() is None:
                command.kill()
        for identity in self.running():
            with suppress(ProcessLookupError):
                os.kill(identity.pid, signal.SIGKILL)


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def described(identities: set[Identity]) -> str:
    """Return processes with their command lines, for a message."""
    lines = []
    for identity in sorted(identities):
        try:
            words = Path(f"/proc/{identity.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            words = "ended"
        lines.append(f"{identity.pid} {words[:120]}")
    return "; ".join(lines)
