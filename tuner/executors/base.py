"""What every executor offers: take trials, run each on a worker of its own, bring the outcomes back.

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
    """A trial that came back, with its outcome and the worker that ran it."""

    spec: TrialSpec
    outcome: TrialOutcome
    slot: int


@dataclass(frozen=True)
class WorkerState:
    """What a worker is doing: its device, its trial (None: idle), the phase and the seconds since the trial began."""

    slot: int
    device: str
    trial: str | None
    phase: Phase | None
    seconds: float


class Executor(Protocol):
    """Runs trials on workers."""

    @property
    def slots(self) -> int:
        """How many trials can run at the same time."""

    def engine_info(self) -> EngineInfo:
        """Return what is installed on the workers.

        Raises:
            UserError: when the engine is missing or unusable there.
        """

    def idle(self) -> list[int]:
        """Return the slots that wait for work, lowest first."""

    def submit(self, spec: TrialSpec, slot: int) -> None:
        """Start a trial on an idle slot.

        Raises:
            ValueError: when the slot is busy or does not exist.
        """

    def wait_any(self, timeout_s: float) -> list[Finished]:
        """Return the trials that came back, waiting at most `timeout_s` for the first.

        A worker that is lost gives an outcome of kind `worker_lost`; its slot is usable again.
        """

    def cancel(self) -> None:
        """Ask every running trial to stop; their outcomes, of kind `cancelled`, still come back.

        Trials that are submitted afterwards are not concerned.
        """

    def states(self) -> list[WorkerState]:
        """Return what each worker is doing."""

    def close(self) -> None:
        """Cancel what runs, stop every server, let the workers go. May be called twice."""
