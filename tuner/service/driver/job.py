"""The identity of a driver's process, its job, which the scheduler tells it beside the submission, and how it ends."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from records.trials import Culprit
from storage.service.records import Driver, SubmissionState
from tuner.processes.family import own_identity
from tuner.service.asked.rules import ServerRules

VARIABLE = "TUNER_SERVICE_JOB"
"""The environment variable that holds a job as JSON: a command line, with the database's password, is public."""


def this_driver() -> Driver:
    """Return this process as a driver."""
    identity = own_identity()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return Driver(socket.gethostname(), identity.pid, identity.started, boot)


@dataclass(frozen=True)
class Ending:
    """The state in which a run leaves its submission, why, and the culprit of a failure."""

    state: SubmissionState
    reason: str | None = None
    culprit: Culprit | None = None


GAVE_BACK = Ending(SubmissionState.QUEUED, "it gave its devices back, and continues when it gets some")
"""How a run ends that was interrupted; a cancelled submission is CANCELLED then."""


@dataclass(frozen=True)
class Job:
    """One run of a submission.

    Attributes:
        run: the run of it, see `Submission.runs`.
        folder: the driver's own folder, for the contents of the settings, its log and the winner's script.
        vllm: the vLLM executable; None: the one that the driver finds.
        ray_address: Ray cluster that runs the trials; None: this machine.
    """

    storage: str
    submission: str
    run: int
    folder: Path
    vllm: str | None = None
    ray_address: str | None = None
    rules: ServerRules = field(default_factory=ServerRules)

    def environment(self) -> dict[str, str]:
        """Return the variable that tells a driver this job."""
        return {VARIABLE: TypeAdapter(Job).dump_json(self).decode()}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Job:
        """Return the job of a driver.

        Raises:
            KeyError: outside a driver.
        """
        return TypeAdapter(cls).validate_json(environment[VARIABLE])
