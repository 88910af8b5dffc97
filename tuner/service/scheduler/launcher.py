"""Start, watch and end drivers: the processes that each run the study of one submission."""

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
    """Starts drivers on this host, each in a process session of its own, so that it outlives the scheduler's process.

    Arguments are those of `Job`, but for `folder`: the service's, in which each submission has one below
    `submissions/`.
    """

    def __init__(
        self, storage: str, folder: Path, vllm: str | None, ray_address: str | None, rules: ServerRules
    ) -> None:
        self._storage, self._folder = storage, folder
        self._vllm, self._ray_address, self._rules = vllm, ray_address, rules
        self._children: dict[tuple[str, int], subprocess.Popen[bytes]] = {}  # by submission and number of its run

    def launch(self, submission: Submission) -> None:
        """Start a driver for a submission that has devices; its output goes to `driver.log` in the submission's folder.

        Raises:
            OSError: if no process can be started.
        """
        folder = submission_folder(self._folder, submission.id)
        folder.mkdir(parents=True, exist_ok=True)
        job = Job(self._storage, submission.id, submission.runs, folder, self._vllm, self._ray_address, self._rules)
        environment = {**without_webhooks(os.environ), **job.environment(), **self.device_variables(submission)}
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

    def device_variables(self, submission: Submission) -> dict[str, str]:
        """Return the environment variables with a driver's GPUs and its MLflow server.

        A GPU of this machine is named `KIND:INDEX`, with NVML's index. Without a GPU, or on a Ray cluster, which
        assigns its own GPUs, no GPU is named.
        """
        variables = {"MLFLOW_TRACKING_URI": tracking_uri(self._storage, self._folder)}
        if self._ray_address is None and submission.kind not in WITHOUT_GPU:
            indices = [name.rpartition(":")[2] for name in submission.granted]
            variables |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(indices)}
        return variables

    def is_running(self, driver: Driver) -> bool | None:
        """Return whether a driver still runs: False if this host has booted since; None for another host's driver."""
        own = this_driver()
        if driver.host != own.host:
            return None
        if driver.boot != own.boot:
            return False
        return is_alive(Identity(driver.pid, driver.started))

    def reap(self) -> set[tuple[str, int]]:
        """Reap the drivers that have ended since the last call; return each one's submission and number of the run."""
        found = {run for run, child in self._children.items() if child.poll() is not None}
        self._children = {run: child for run, child in self._children.items() if run not in found}
        return found

    def abandon(self, submission: str, run: int) -> bool:
        """Kill the process of a run that has not registered as its driver; return whether it is one of this process."""
        child = self._children.get((submission, run))
        if child is not None:
            child.kill()
        return child is not None

    def interrupt(self) -> None:
        """Send SIGTERM to all drivers that this process started; they end, and their submissions are queued again."""
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        """Wait at most `seconds` in total for the drivers to end, and return how many still run."""
        deadline = time.monotonic() + seconds
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=max(deadline - time.monotonic(), 0.0))
        self.reap()
        return len(self._children)


def submission_folder(folder: Path, submission: str) -> Path:
    """Return the folder of a submission within the service's folder."""
    return folder / "submissions" / submission


def without_webhooks(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without the addresses and keys of webhooks: drivers send nothing there."""
    return {name: value for name, value in variables.items() if not name.startswith(WEBHOOKS)}


def kill_driver(driver: Driver) -> bool:
    """Kill a driver of this host that no longer writes heartbeats; return False if it had ended before."""
    return send_signal(Identity(driver.pid, driver.started), signal.SIGKILL)
