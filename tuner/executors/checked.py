"""An executor that runs only configurations that keep the model's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from storage.records import Config, Failure, TrialOutcome
from tuner.engines.base import EngineInfo
from tuner.executors.base import Executor, Finished, WorkerState
from tuner.specs import TrialSpec

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
        """The number of workers."""
        return self._executor.slots

    def engine_info(self) -> EngineInfo:
        """Return the engine of the workers."""
        return self._executor.engine_info()

    def idle(self) -> list[int]:
        """Return the slots that can take a trial."""
        busy = {finished.slot for finished in self._refused}
        return [slot for slot in self._executor.idle() if slot not in busy]

    def starting(self) -> list[int]:
        """Return the slots whose worker has not started."""
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
        """Return the trials that ended, with their quality."""
        refused, self._refused = self._refused, []
        return refused or [self._with_quality(finished) for finished in self._executor.wait_any(timeout_s)]

    def cancel(self) -> None:
        """Cancel every running trial."""
        self._executor.cancel()

    def states(self) -> list[WorkerState]:
        """Return the state of each worker."""
        return self._executor.states()

    def close(self) -> None:
        """End the workers."""
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
