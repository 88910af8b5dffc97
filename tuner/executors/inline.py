"""An executor of threads in this process, for tests and for engines that need no device."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from storage.records import Phase
from tuner.engines.base import Engine, EngineInfo
from tuner.executors.base import Finished, WorkerState
from tuner.specs import TrialSpec
from tuner.trial.pipeline import run_trial


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
        """How many trials can run at the same time."""
        return len(self._engines)

    def engine_info(self) -> EngineInfo:
        """Return the installation of the engine."""
        return self._engines[0].info()

    def idle(self) -> list[int]:
        """Return the slots that have no trial."""
        return [slot for slot in range(self.slots) if slot not in self._running]

    def starting(self) -> list[int]:
        """Return no slot: threads need no start."""
        return []

    def submit(self, spec: TrialSpec, slot: int) -> None:
        """Start a trial on an idle slot."""
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
        """Return the trials that ended; wait at most `timeout_s` seconds for the first."""
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
        """Cancel every running trial."""
        for slot in self._running:
            self._cancelled[slot].set()

    def states(self) -> list[WorkerState]:
        """Return the state of each worker."""
        now = time.monotonic()
        states = []
        for slot in range(self.slots):
            spec, since, _ = self._running.get(slot, (None, now, None))
            phase = self._phases.get(slot)
            states.append(WorkerState(slot, self._device, spec.uid if spec else None, phase, now - since))
        return states

    def close(self) -> None:
        """Cancel the running trials, wait until they end, and close the engines."""
        self.cancel()
        for _, _, thread in list(self._running.values()):
            thread.join()
        for engine in self._engines:
            engine.close()
        self._engines = []
