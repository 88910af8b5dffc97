"""A look at the process table several times a second: two drivers of one study, and what drivers leave behind."""

import json
import os
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from tests.faults.command import described
from tests.service.chaos.figures import Figures
from tuner.processes.family import Identity, is_alive, read_process_table
from tuner.processes.records import ProcessRecord, ProcessRecords
from tuner.service.driver.job import VARIABLE

POLL_S = 0.25
MOST_OVERLAP_S = 60.0
"""How long two driver processes of one study may live at once: one that has ended its run leaves its interpreter, one
that comes too late finds that the run is over. Only one of them is the submission's driver. On a machine with eight
times as much to do as it has processors, the imports of one that came too late took 28 s."""


class Watch(threading.Thread):
    """Notes the drivers of each submission, and every process below them.

    Args:
        folder: of the services.
        home: TUNER_HOME of the services.
        figures: get overlaps and problems.
    """

    def __init__(self, folder: Path, home: Path, figures: Figures) -> None:
        super().__init__(daemon=True)
        self._root, self._home, self._figures = str(folder / "tuner_service" / "submissions"), home, figures
        self._jobs: dict[Identity, str] = {}
        self._since: dict[frozenset[Identity], float] = {}
        self._told: set[frozenset[Identity]] = set()
        self.below: dict[Identity, set[Identity]] = defaultdict(set)
        """Every process that was seen below a driver, by driver."""
        self.ended = threading.Event()

    def run(self) -> None:
        """Look until `ended` is set."""
        while not self.ended.wait(POLL_S):
            self.look()

    def look(self) -> dict[str, list[Identity]]:
        """Return the living drivers of each submission."""
        table = read_process_table()
        found: dict[str, list[Identity]] = defaultdict(list)
        children: dict[int, list[Identity]] = defaultdict(list)
        for state in table.values():
            children[state.parent].append(state.identity)
            if state.alive and (submission := self._submission_of(state.identity)):
                found[submission].append(state.identity)
        for driver in [each for drivers in found.values() for each in drivers]:
            waiting, _ = list(children[driver.pid]), self.below[driver]
            while waiting:
                child = waiting.pop()
                self.below[driver].add(child)
                waiting += children[child.pid]
        self._note_overlaps(found)
        return found

    def _submission_of(self, identity: Identity) -> str | None:
        """Return the submission of a driver of these services; None for another process."""
        if identity not in self._jobs:
            with suppress(OSError):
                if b"tuner.service.driver" in Path(f"/proc/{identity.pid}/cmdline").read_bytes().split(b"\0"):
                    self._jobs[identity] = self._read_job(identity.pid)
        return self._jobs.get(identity)

    def _read_job(self, pid: int) -> str:
        """Return the submission in a driver's environment; empty for a driver of other services."""
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(f"{VARIABLE}=".encode()):
                job = json.loads(entry.partition(b"=")[2])
                return str(job["submission"]) if str(job["folder"]).startswith(self._root) else ""
        return ""

    def _note_overlaps(self, found: dict[str, list[Identity]]) -> None:
        """Note since when submissions have two processes, and count those that have ended."""
        now = time.monotonic()
        pairs = {frozenset(drivers): submission for submission, drivers in found.items() if len(drivers) > 1}
        for pair in pairs:
            self._since.setdefault(pair, now)
        for pair in [each for each in self._since if each not in pairs or now - self._since[each] > MOST_OVERLAP_S]:
            lasted = now - self._since[pair]
            if pair not in pairs:
                self._since.pop(pair)
                self._figures.overlaps_s.append(round(lasted, 2))
            elif pair not in self._told:
                self._told.add(pair)
                self._figures.problems.append(f"{pairs[pair]} has two drivers for {lasted:.0f} s: {set(pair)}")

    def leftovers(self) -> str:
        """Return what is left when no driver runs: processes, records of processes and temporary folders."""
        mark = f"TUNER_HOME={self._home}".encode()
        left = {each for below in self.below.values() for each in below if is_alive(each)}
        left |= {each for each in self.below if is_alive(each)}
        for state in read_process_table().values():
            with suppress(OSError):
                if state.alive and mark in Path(f"/proc/{state.identity.pid}/environ").read_bytes().split(b"\0"):
                    left.add(state.identity)
        records = [f"record of {each.label}" for place in ("processes", "ray") for each in self._records(place)]
        owners = {str(each.pid) for driver, below in self.below.items() for each in (driver, *below)}
        folders = Path(tempfile.gettempdir()).glob("tuner-*-*-*")
        kept = [str(each) for each in folders if each.name.split("-")[2] in owners]
        return "; ".join([*([described(left)] if left else []), *records, *kept])

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs of each Ray that runs now."""
        owners = {str(each.pid) for each in self.below if is_alive(each)}
        for logs in Path(tempfile.gettempdir()).glob("tuner-ray-*/r/session_2*/logs"):
            if (owner := logs.parts[-4].split("-")[2]) in owners:
                with suppress(OSError, shutil.Error):
                    shutil.copytree(logs, folder / owner)

    def _records(self, place: str) -> list[ProcessRecord]:
        folder = self._home / place
        return list(ProcessRecords(folder).all()) if folder.is_dir() else []

    def kill_all(self) -> None:
        """Kill what is left, by id."""
        for identity in {each for driver, below in self.below.items() for each in (driver, *below)}:
            if is_alive(identity):
                with suppress(ProcessLookupError):
                    os.kill(identity.pid, 9)
