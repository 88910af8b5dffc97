"""The interface of executors, the one of threads in this process, and the one that checks answers first.

An executor owns `slots` workers. A worker runs one trial at a time, or several that need fewer GPUs than it has: its
other GPUs are slots from `slots` on. Implementations pass `tests/contracts/executor_contract.py`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from records.trials import Config, Failure, Phase, TrialOutcome
from tuner.engines.base import Engine, EngineInfo
from tuner.specs import TrialSpec
from tuner.trial.pipeline import run_trial


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
        """The number of workers; slots from this number on are further GPUs of a worker, for trials of one GPU."""

    def engine_info(self) -> EngineInfo:
        """Return the engine that is installed on the workers.

        Raises:
            UserError: if the engine is missing or unusable there.
            InfrastructureError: if no worker starts.
        """

    def idle(self) -> list[int]:
        """Return the slots that can take a trial, the lowest first."""

    def fits(self, slot: int, gpus: int) -> bool:
        """Return whether a trial that uses so many GPUs can start on an idle slot."""

    def starting(self) -> list[int]:
        """Return the slots whose worker has not started: they have no trial and take none."""

    def submit(self, spec: TrialSpec, slot: int) -> None:
        """Start a trial on an idle slot.

        Raises:
            ValueError: if the slot is busy, too small or does not exist.
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


class InlineExecutor:
    """Runs each trial in a thread of its own; see `Executor`."""

    def __init__(self, make_engine: Callable[[int], Engine], slots: int = 1, device: str = "cpu") -> None:
        self._engines = [make_engine(slot) for slot in range(slots)]
        self._device = device
        self._done: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._running: dict[int, tuple[TrialSpec, float, threading.Thread]] = {}
        self._cancelled: dict[int, threading.Event] = {}
        self._phases: dict[int, Phase] = {}

    @property
    def slots(self) -> int:
        return len(self._engines)

    def engine_info(self) -> EngineInfo:
        return self._engines[0].info()

    def idle(self) -> list[int]:
        return [slot for slot in range(self.slots) if slot not in self._running]

    def fits(self, slot: int, gpus: int) -> bool:
        return True

    def starting(self) -> list[int]:
        return []

    def submit(self, spec: TrialSpec, slot: int) -> None:
        if slot not in self.idle():
            raise ValueError(f"slot {slot} is busy or does not exist; idle: {self.idle()}")
        self._cancelled[slot] = threading.Event()
        thread = threading.Thread(target=self._run, args=(spec, slot), name=f"trial-{spec.uid}", daemon=True)
        self._running[slot] = (spec, time.monotonic(), thread)
        thread.start()

    def _run(self, spec: TrialSpec, slot: int) -> None:
        def report(phase: Phase) -> None:
            self._phases[slot] = phase

        outcome = run_trial(
            self._engines[slot], spec, self._cancelled[slot], worker=f"w{slot}", device=self._device, report=report
        )
        self._done.put(Finished(spec, outcome, slot))

    def wait_any(self, timeout_s: float) -> list[Finished]:
        finished: list[Finished] = []
        try:
            finished.append(self._done.get(timeout=timeout_s))
            while True:
                finished.append(self._done.get_nowait())
        except queue.Empty:
            pass
        for item in finished:
            self._running.pop(item.slot)[2].join()
            self._phases.pop(item.slot, None)
        return finished

    def cancel(self) -> None:
        for slot in self._running:
            self._cancelled[slot].set()

    def states(self) -> list[WorkerState]:
        now = time.monotonic()
        states = []
        for slot in range(self.slots):
            spec, since, _ = self._running.get(slot, (None, now, None))
            phase = self._phases.get(slot)
            states.append(WorkerState(slot, self._device, spec.uid if spec else None, phase, now - since))
        return states

    def close(self) -> None:
        self.cancel()
        for _, _, thread in list(self._running.values()):
            thread.join()
        for engine in self._engines:
            engine.close()
        self._engines = []


Check = Callable[[Config], "float | Failure"]
"""Return the quality of a configuration, or the failure of one whose answers are lost."""


class CheckedExecutor:
    """Checks each configuration before its trial starts; the quality is a metric of the trial. See `Executor`.

    It has one worker, so that no trial is measured while a server is examined.
    """

    def __init__(self, executor: Executor, check: Check) -> None:
        self._executor = executor
        self._check = check
        self._refused: list[Finished] = []
        self._quality: dict[str, float] = {}

    @property
    def slots(self) -> int:
        return self._executor.slots

    def engine_info(self) -> EngineInfo:
        return self._executor.engine_info()

    def idle(self) -> list[int]:
        busy = {finished.slot for finished in self._refused}
        return [slot for slot in self._executor.idle() if slot not in busy and slot < self.slots]

    def fits(self, slot: int, gpus: int) -> bool:
        return self._executor.fits(slot, gpus)

    def starting(self) -> list[int]:
        return self._executor.starting()

    def submit(self, spec: TrialSpec, slot: int) -> None:
        """Check the configuration; start its trial if it keeps the answers, else fail the trial."""
        found = self._check(spec.config)
        if isinstance(found, Failure):
            self._refused.append(Finished(spec, self._failed(spec, slot, found), slot))
            return
        self._quality[spec.uid] = found
        self._executor.submit(spec, slot)

    def wait_any(self, timeout_s: float) -> list[Finished]:
        refused, self._refused = self._refused, []
        return refused or [self._with_quality(finished) for finished in self._executor.wait_any(timeout_s)]

    def cancel(self) -> None:
        self._executor.cancel()

    def states(self) -> list[WorkerState]:
        return self._executor.states()

    def close(self) -> None:
        self._executor.close()

    def _with_quality(self, finished: Finished) -> Finished:
        quality = self._quality.pop(finished.spec.uid, None)
        repeats = tuple(
            replace(each, metrics={**each.metrics, "quality": quality}) for each in finished.outcome.repeats
        )
        return replace(finished, outcome=replace(finished.outcome, repeats=repeats))

    def _failed(self, spec: TrialSpec, slot: int, failure: Failure) -> TrialOutcome:
        now = datetime.now(UTC)
        return TrialOutcome(
            started_at=now,
            ended_at=now,
            provenance=self._executor.engine_info().provenance,
            worker=f"w{slot}",
            device=self._executor.states()[slot].device,
            timings={},
            artifacts=str(spec.artifacts),
            argv=(*spec.launch.base_argv, *spec.launch.argv),
            environment=dict(spec.launch.environment),
            repeats=(),
            server=None,
            failure=failure,
        )
