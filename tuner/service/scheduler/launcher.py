"""Start drivers, and tell whether one still runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from storage.service.records import Driver, Submission
from tuner.processes.family import Identity, is_alive, send_signal
from tuner.service.asked.rules import ServerRules
from tuner.service.driver.job import Job, this_driver
from tuner.service.queue.rules import WITHOUT_GPU
from tuner.service.watching.webhooks import PREFIX as WEBHOOKS
from tuner.use_cases.places import tracking_uri

LOG = "driver.log"


class Launcher:
    """Starts drivers on this host, each in a session of its own, so that it outlives this process.

    Args:
        storage: URL of the database.
        folder: the service's folder; each submission has one below `submissions/`.
        vllm: the vLLM executable; None: the one that a driver finds.
        ray_address: Ray cluster for the trials; None: this machine.
        rules: what submissions may ask; a driver checks them again.
    """

    def __init__(
        self, storage: str, folder: Path, vllm: str | None, ray_address: str | None, rules: ServerRules
    ) -> None:
        self._storage, self._folder = storage, folder
        self._vllm, self._ray_address, self._rules = vllm, ray_address, rules
        self._children: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def launch(self, submission: Submission) -> None:
        """Start a driver for a submission that has devices; its output goes to `driver.log` in the submission's folder.

        Raises:
            OSError: if no process can be started.
        """
        folder = folder_of(self._folder, submission.id)
        folder.mkdir(parents=True, exist_ok=True)
        job = Job(self._storage, submission.id, submission.runs, folder, self._vllm, self._ray_address, self._rules)
        environment = {**inherited(os.environ), **job.environment(), **self.variables_of(submission)}
        with (folder / LOG).open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "tuner.service.driver"],  # -P: no module of the current folder
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children[submission.id, submission.runs] = child

    def variables_of(self, submission: Submission) -> dict[str, str]:
        """Return the variables that name a driver's GPUs and where it logs.

        Names of this machine's GPUs are `KIND:INDEX`, by NVML's index. A cluster places its own GPUs.
        """
        variables = {"MLFLOW_TRACKING_URI": tracking_uri(self._storage, self._folder)}
        if self._ray_address is None and submission.kind not in WITHOUT_GPU:
            indices = [name.rpartition(":")[2] for name in submission.granted]
            variables |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(indices)}
        return variables

    def runs(self, driver: Driver) -> bool | None:
        """Return whether a driver of this host and boot still runs; None for another host."""
        here = this_driver()
        if driver.host != here.host:
            return None
        if driver.boot != here.boot:
            return False
        return is_alive(Identity(driver.pid, driver.started))

    def ended(self) -> set[tuple[str, int]]:
        """Reap the drivers that have ended since the last call, and return their submissions and runs."""
        found = {run for run, child in self._children.items() if child.poll() is not None}
        self._children = {run: child for run, child in self._children.items() if run not in found}
        return found

    def abandon(self, submission: str, run: int) -> None:
        """Kill the process of a run that did not become its driver in time: a frozen one would stay for good."""
        if (child := self._children.get((submission, run))) is not None:
            child.kill()

    def interrupt(self) -> None:
        """Ask the drivers of this process to end at once; their submissions are queued again."""
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        """Wait for the drivers to end, at most so long in all, and return how many still run."""
        deadline = time.monotonic() + seconds
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=max(deadline - time.monotonic(), 0.0))
        self.ended()
        return len(self._children)


def folder_of(folder: Path, submission: str) -> Path:
    """Return the folder of a submission below the service's."""
    return folder / "submissions" / submission


def inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the service's variables without the addresses of its webhooks: drivers send nothing there."""
    return {name: value for name, value in variables.items() if not name.startswith(WEBHOOKS)}


def end_driver(driver: Driver) -> bool:
    """Kill a driver of this host that no longer writes heartbeats; return False if it has ended."""
    return send_signal(Identity(driver.pid, driver.started), signal.SIGKILL)
