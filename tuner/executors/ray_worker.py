"""One Ray worker: the actor class, and what the driver knows about it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from storage.records import Phase, TrialOutcome
from tuner import scratch
from tuner.engines.base import Engine, EngineInfo
from tuner.executors import carried_files
from tuner.files import be_private
from tuner.processes.identity import Identity, own_identity
from tuner.specs import TrialSpec
from tuner.trial.pipeline import run_trial

MakeEngine = Callable[[int], Engine]
"""Builds a worker's engine from its slot; pickled to the actor."""


@dataclass(frozen=True)
class WorkerResult:
    """An outcome, with the trial's files as an archive if the worker does not share the study's folder."""

    outcome: TrialOutcome
    files: bytes | None


def restore_omp_threads(omp_threads: str | None) -> None:
    """Set OMP_NUM_THREADS to the driver's: Ray sets it for its workers, and a server must not inherit that."""
    os.environ.pop("OMP_NUM_THREADS", None)
    if omp_threads is not None:
        os.environ["OMP_NUM_THREADS"] = omp_threads


class RayWorker:
    """The actor class: one engine in a process of its own."""

    def __init__(self, make_engine: MakeEngine, slot: int, omp_threads: str | None) -> None:
        restore_omp_threads(omp_threads)
        be_private()  # a worker of another host has no umask of the driver's
        self._engine = make_engine(slot)
        self._slot = slot
        self._cancelled: dict[str, threading.Event] = {}
        self._phase: Phase | None = None

    def info(self) -> EngineInfo:
        """Return what is installed."""
        return self._engine.info()

    def identity(self) -> Identity:
        """Return the worker's process."""
        return own_identity()

    def run(self, spec: TrialSpec, device: str, *, carry: bool) -> WorkerResult:
        """Run one attempt at a trial.

        Args:
            spec: the trial.
            device: name of the device, for the record.
            carry: whether to return the trial's files if this host does not have the driver's folder.
        """
        if not carry or carried_files.is_shared(spec.artifacts):
            return WorkerResult(self._run(spec, device), None)
        folder = scratch.new_folder("trial")
        try:
            outcome = self._run(replace(spec, artifacts=folder), device)
            files = carried_files.pack(folder, os.uname().nodename)
            return WorkerResult(replace(outcome, artifacts=os.fspath(spec.artifacts)), files)
        finally:
            scratch.remove(folder)

    def _run(self, spec: TrialSpec, device: str) -> TrialOutcome:
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
class Slot:
    """The driver's view of one worker.

    Args:
        index: number of the slot.
        device: name of the worker's device.
        group: the actors of the worker.
        identity: reference to the actor's process, which is ready once the actor has started.
        requested: when the actor was requested, by `time.monotonic`.
        retry_at: when another actor is requested after one failed to start, by `time.monotonic`; 0: none has failed.
        process: the worker's process, once known; of use only if it runs on this host.
        spec: the running trial; None: idle.
        reference: to the outcome of the running trial.
        since: when the trial was submitted, by `time.monotonic`.
        started_at: the same by the wall clock.
    """

    index: int
    device: str
    group: Any = None
    identity: Any = None
    requested: float = 0.0
    retry_at: float = 0.0
    process: Identity | None = None
    spec: TrialSpec | None = None
    reference: Any = None
    since: float = 0.0
    started_at: datetime | None = None

    @property
    def actor(self) -> Any:
        """The actor that runs trials."""
        return self.group.worker

    def free(self) -> None:
        """Forget the trial."""
        self.spec = self.reference = self.started_at = None
