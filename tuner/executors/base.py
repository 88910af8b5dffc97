"""The interface of executors: run each submitted trial on a worker and return its outcome.

An executor owns `slots` workers; a worker runs one trial at a time. Implementations pass
`tests/contracts/executor_contract.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from storage.records import Phase, TrialOutcome
from tuner.engines.base import EngineInfo
from tuner.specs import TrialSpec


@dataclass(frozen=True)
class Finished:
    """A trial that ended, with its outcome and the worker that ran it."""

    spec: TrialSpec
    outcome: TrialOutcome
    slot: int


@dataclass(frozen=True)
class WorkerState:
    """The state of a worker: its device, its trial (None: idle), the phase and the seconds since the trial began."""

    slot: int
    device: str
    trial: str | None
    phase: Phase | None
    seconds: float


class Executor(Protocol):
    """Runs trials on workers."""

    @property
    def slots(self) -> int:
        """The number of workers, each of which runs one trial at a time."""

    def engine_info(self) -> EngineInfo:
        """Return the engine that is installed on the workers.

        Raises:
            UserError: if the engine is missing or unusable there.
            InfrastructureError: if no worker starts.
        """

    def idle(self) -> list[int]:
        """Return the slots that can take a trial, the lowest first."""

    def starting(self) -> list[int]:
        """Return the slots whose worker has not started: they have no trial and take none."""

    def submit(self, spec: TrialSpec, slot: int) -> None:
        """Start a trial on an idle slot.

        Raises:
            ValueError: if the slot is busy or does not exist.
        """

    def wait_any(self, timeout_s: float) -> list[Finished]:
        """Return the trials that ended; wait at most `timeout_s` seconds for the first.

        A lost worker gives an outcome of kind `worker_lost`; its slot can be used again once a new worker has started.

        Raises:
            InfrastructureError: if no trial runs and a worker does not start before its deadline.
        """

    def cancel(self) -> None:
        """Cancel every running trial; `wait_any` returns their outcomes, of kind `cancelled`.

        Trials that are submitted afterwards are not cancelled.
        """

    def states(self) -> list[WorkerState]:
        """Return the state of each worker."""

    def close(self) -> None:
        """Cancel the running trials, stop every server and end the workers; may be called twice."""
