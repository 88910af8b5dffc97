"""An executor of Ray actors, one per device.

An actor that ends returns its trial as `worker_lost`. The actor that replaces it ends the processes that the first one
left. `tuner.executors.ray_environment.set_ray_environment` must have been called before this module is imported.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import ray
from ray.exceptions import RayError

from storage.errors import first_line
from storage.records import Failure, FailureKind, Phase, Provenance, TrialOutcome
from tuner import scratch
from tuner.engines.base import Engine, EngineInfo
from tuner.errors import InfrastructureError, TunerError
from tuner.executors.base import Finished, WorkerState
from tuner.executors.ray_start import NOTICE_S, join_cluster, start_local
from tuner.specs import TrialSpec
from tuner.trial.pipeline import run_trial

WORKER_START_S = 600.0
ENGINE_INFO_S = 1200.0
CLOSE_S = 120.0

_log = logging.getLogger(__name__)

MakeEngine = Callable[[int], Engine]
"""Builds a worker's engine from its slot; pickled to the actor."""


class _Worker:
    """The actor: one engine, one trial at a time, in a process of its own."""

    def __init__(self, make_engine: MakeEngine, slot: int, omp_threads: str | None) -> None:
        # Ray sets OMP_NUM_THREADS for its workers; a server must not inherit it.
        os.environ.pop("OMP_NUM_THREADS", None)
        if omp_threads is not None:
            os.environ["OMP_NUM_THREADS"] = omp_threads
        self._engine = make_engine(slot)
        self._slot = slot
        self._cancelled: dict[str, threading.Event] = {}
        self._phase: Phase | None = None

    def info(self) -> EngineInfo:
        """Return the installation of the engine."""
        return self._engine.info()

    def identity(self) -> tuple[int, str]:
        """Return the process id and the host's name."""
        return os.getpid(), os.uname().nodename

    def run(self, spec: TrialSpec, device: str) -> TrialOutcome:
        """Run one attempt at a trial."""
        worker = f"w{self._slot}@{os.uname().nodename}"
        cancelled = self._event(spec.uid)
        try:
            return run_trial(self._engine, spec, cancelled, worker=worker, device=device, report=self._note_phase)
        finally:
            self._phase = None
            del self._cancelled[spec.uid]

    def _event(self, uid: str) -> threading.Event:
        return self._cancelled.setdefault(uid, threading.Event())

    def _note_phase(self, phase: Phase) -> None:
        self._phase = phase

    def phase(self) -> Phase | None:
        """Return the phase of the running trial."""
        return self._phase

    def cancel(self, uid: str) -> None:
        """Cancel a trial, also one that was submitted and has not begun."""
        self._event(uid).set()

    def close(self) -> None:
        """Close the engine, which stops its servers."""
        self._engine.close()


@dataclass
class _Slot:
    """The driver's view of one worker."""

    actor: Any
    device: str
    spec: TrialSpec | None = None
    reference: Any = None
    since: float = 0.0
    started_at: datetime | None = None


class RayExecutor:
    """Runs each trial on a Ray actor; see `Executor`."""

    def __init__(
        self,
        make_engine: MakeEngine,
        devices: list[str],
        *,
        gpus: bool,
        provenance: Provenance,
        address: str | None = None,
    ) -> None:
        """Start Ray and one actor for each name in `devices`.

        Args:
            make_engine: builds a worker's engine from its slot.
            devices: a name for each worker's device, for the record.
            gpus: give each worker a GPU of its own (Ray sets CUDA_VISIBLE_DEVICES).
            provenance: of the outcomes of lost workers.
            address: a cluster to join; None starts a Ray of this command.

        Raises:
            SettingError: if the cluster cannot be joined, or has too few GPUs.
            InfrastructureError: if Ray does not start on this machine.
        """
        self._make_engine = make_engine
        self._gpus = gpus
        self._provenance = provenance
        self._folder = None
        if address is None:
            self._folder = start_local(len(devices), gpus)
        else:
            join_cluster(address, len(devices), gpus)
        self._slots = [_Slot(None, device) for device in devices]
        for index in range(len(devices)):
            self._slots[index].actor = self._new_actor(index)

    def _new_actor(self, slot: int) -> Any:
        options = {"num_cpus": 0 if self._gpus else 1, "num_gpus": 1 if self._gpus else 0, "max_concurrency": 4}
        actor = ray.remote(_Worker).options(**options)
        return actor.remote(self._make_engine, slot, os.environ.get("OMP_NUM_THREADS"))

    @property
    def slots(self) -> int:
        """How many trials can run at the same time."""
        return len(self._slots)

    def engine_info(self) -> EngineInfo:
        """Return the installation of the engine on the first worker."""
        actor = self._slots[0].actor
        try:
            self._wait_for(actor.identity.remote(), "the first Ray worker to start", WORKER_START_S)
            info = self._wait_for(actor.info.remote(), "the first worker to read the engine's version", ENGINE_INFO_S)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TunerError):
                raise error.cause from None
            raise
        except RayError as error:
            raise InfrastructureError(f"a Ray worker could not start: {first_line(error)}") from error
        assert isinstance(info, EngineInfo)
        return info

    @staticmethod
    def _wait_for(reference: Any, description: str, timeout_s: float) -> Any:
        """Return an actor's answer; log the wait every `NOTICE_S` seconds.

        Raises:
            InfrastructureError: if there is no answer within `timeout_s` seconds.
            RayError: if the actor failed.
        """
        begun = time.monotonic()
        while not ray.wait([reference], timeout=NOTICE_S)[0]:
            waited = time.monotonic() - begun
            if waited > timeout_s:
                raise InfrastructureError(f"waited {waited:.0f} s for {description}; see `ray status`")
            _log.warning("waiting for %s (%.0f s of at most %.0f s)", description, waited, timeout_s)
        return ray.get(reference)

    def idle(self) -> list[int]:
        """Return the slots that have no trial."""
        return [index for index, slot in enumerate(self._slots) if slot.spec is None]

    def submit(self, spec: TrialSpec, slot: int) -> None:
        """Start a trial on an idle slot."""
        if slot not in self.idle():
            raise ValueError(f"slot {slot} is busy or does not exist; idle: {self.idle()}")
        entry = self._slots[slot]
        entry.spec, entry.since, entry.started_at = spec, time.monotonic(), datetime.now(UTC)
        entry.reference = entry.actor.run.remote(spec, entry.device)

    def wait_any(self, timeout_s: float) -> list[Finished]:
        """Return the trials that ended; wait at most `timeout_s` seconds for the first."""
        running = {entry.reference: index for index, entry in enumerate(self._slots) if entry.reference is not None}
        if not running:
            return []
        ready, _ = ray.wait(list(running), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
        return [self._collect(running[reference]) for reference in ready]

    def _collect(self, index: int) -> Finished:
        entry = self._slots[index]
        spec = entry.spec
        assert spec is not None
        try:
            outcome = ray.get(entry.reference)
        except ray.exceptions.RayTaskError as error:
            outcome = self._lost(entry, FailureKind.TUNER_ERROR, f"the worker raised {first_line(error)}")
        except RayError as error:
            outcome = self._lost(entry, FailureKind.WORKER_LOST, f"the worker was lost: {first_line(error)}")
            entry.actor = self._new_actor(index)
        entry.spec = entry.reference = None
        return Finished(spec, outcome, index)

    def _lost(self, entry: _Slot, kind: FailureKind, message: str) -> TrialOutcome:
        assert entry.spec is not None
        assert entry.started_at is not None
        return TrialOutcome(
            started_at=entry.started_at,
            ended_at=datetime.now(UTC),
            provenance=self._provenance,
            worker=f"w{self._slots.index(entry)}",
            device=entry.device,
            timings={},
            artifacts=os.fspath(entry.spec.artifacts),
            failure=Failure(kind, Phase.LAUNCH, message),
        )

    def cancel(self) -> None:
        """Cancel every running trial."""
        for entry in self._slots:
            if entry.spec is not None:
                entry.actor.cancel.remote(entry.spec.uid)

    def states(self) -> list[WorkerState]:
        """Return the state of each worker."""
        busy = [entry for entry in self._slots if entry.spec is not None]
        phases: dict[int, Phase | None] = {}
        try:
            answers = ray.get([entry.actor.phase.remote() for entry in busy], timeout=0.5)
            phases = {id(entry): phase for entry, phase in zip(busy, answers, strict=True)}
        except RayError:
            pass  # a worker that is starting or lost has no phase
        now = time.monotonic()
        return [
            WorkerState(
                index,
                entry.device,
                entry.spec.uid if entry.spec else None,
                phases.get(id(entry)),
                now - entry.since if entry.spec else 0.0,
            )
            for index, entry in enumerate(self._slots)
        ]

    def close(self) -> None:
        """Cancel the running trials, stop every server, end the workers, and stop a Ray of this command."""
        if not self._slots:
            return
        self.cancel()
        endings = [entry.actor.close.remote() for entry in self._slots]
        running = [entry.reference for entry in self._slots if entry.reference is not None]
        ray.wait([*endings, *running], num_returns=len(endings) + len(running), timeout=CLOSE_S)
        for entry in self._slots:
            ray.kill(entry.actor)
        self._slots = []
        ray.shutdown()
        if self._folder is not None:
            scratch.remove(self._folder)
