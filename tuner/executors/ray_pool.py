"""An executor of Ray actors, one a device: the single home of Ray.

By default Ray runs inside this command: a small object store (trials send kilobytes; Ray would size it from the
machine's memory), no dashboard, no usage report, a temporary folder that goes with it. `address` joins a cluster.
`tuner.executors.ray_environment.prepare` must have been called before this module is imported.
An actor that dies gives its trial back as `worker_lost`; the one made in its place ends what the dead one left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from storage.records import Failure, FailureKind, Phase, Provenance, TrialOutcome
from tuner import scratch
from tuner.engines.base import Engine, EngineInfo
from tuner.errors import TunerError, UserError
from tuner.executors.base import Finished, WorkerState
from tuner.specs import TrialSpec
from tuner.trial.pipeline import run_trial

OBJECT_STORE_BYTES = 80 * 1024 * 1024
ACTOR_START_S = 120.0
CLOSE_S = 60.0

MakeEngine = Callable[[int], Engine]
"""Builds a worker's engine from its slot; pickled to the actor."""


class _Worker:
    """The actor: one engine, one trial at a time. Runs in a process of its own."""

    def __init__(self, make_engine: MakeEngine, slot: int, keep_omp: str | None) -> None:
        # Ray sets OMP_NUM_THREADS for its workers; a server must not inherit that.
        os.environ.pop("OMP_NUM_THREADS", None)
        if keep_omp is not None:
            os.environ["OMP_NUM_THREADS"] = keep_omp
        self._engine = make_engine(slot)
        self._slot = slot
        self._cancelled: dict[str, threading.Event] = {}
        self._phase: Phase | None = None

    def info(self) -> EngineInfo:
        """Return what is installed."""
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
        """Ask a trial to stop, also one that was submitted and has not begun."""
        self._event(uid).set()

    def close(self) -> None:
        """Release the engine; what it runs is stopped."""
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
            provenance: of what a lost worker would have brought back.
            address: a cluster to join; None starts Ray in this process.

        Raises:
            UserError: when the cluster cannot be joined, or has too few GPUs.
        """
        self._make_engine = make_engine
        self._gpus = gpus
        self._provenance = provenance
        self._temp = _start_ray(address, len(devices), gpus)
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
        """Return what is installed on the first worker."""
        try:
            info = ray.get(self._slots[0].actor.info.remote(), timeout=ACTOR_START_S)
        except ray.exceptions.GetTimeoutError:
            raise TunerError(f"no Ray worker started within {ACTOR_START_S:.0f} s; see `ray status`") from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TunerError):
                raise error.cause from None
            raise
        except RayError as error:
            raise TunerError(f"a Ray worker could not start: {_one_line(error)}") from error
        assert isinstance(info, EngineInfo)
        return info

    def idle(self) -> list[int]:
        """Return the slots that wait for work."""
        return [index for index, slot in enumerate(self._slots) if slot.spec is None]

    def submit(self, spec: TrialSpec, slot: int) -> None:
        """Start a trial on an idle slot."""
        if slot not in self.idle():
            raise ValueError(f"slot {slot} is busy or does not exist; idle: {self.idle()}")
        entry = self._slots[slot]
        entry.spec, entry.since, entry.started_at = spec, time.monotonic(), datetime.now(UTC)
        entry.reference = entry.actor.run.remote(spec, entry.device)

    def wait_any(self, timeout_s: float) -> list[Finished]:
        """Return the trials that came back, waiting at most `timeout_s` for the first."""
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
            outcome = self._lost(entry, FailureKind.TUNER_ERROR, f"the worker raised {_one_line(error)}")
        except RayError as error:
            outcome = self._lost(entry, FailureKind.WORKER_LOST, f"the worker was lost: {_one_line(error)}")
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
        """Ask every running trial to stop."""
        for entry in self._slots:
            if entry.spec is not None:
                entry.actor.cancel.remote(entry.spec.uid)

    def states(self) -> list[WorkerState]:
        """Return what each worker is doing."""
        busy = [entry for entry in self._slots if entry.spec is not None]
        phases: dict[int, Phase | None] = {}
        try:
            answers = ray.get([entry.actor.phase.remote() for entry in busy], timeout=0.5)
            phases = {id(entry): phase for entry, phase in zip(busy, answers, strict=True)}
        except RayError:
            pass  # A worker that starts or is lost has no phase to tell; its outcome will.
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
        """Cancel what runs, stop every server, let the workers go, and stop the Ray that was started here."""
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
        if self._temp is not None:
            scratch.remove(self._temp)


def _start_ray(address: str | None, slots: int, gpus: bool) -> Path | None:
    """Start or join Ray; return the temporary folder of one started here."""
    if address is not None:
        try:
            with _sigterm_kept():
                ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RayError, ValueError) as error:
            raise UserError(
                f"--ray-address {address!r} cannot be joined: {_one_line(error)}; is the cluster up?"
            ) from None
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        available = resources.get("GPU", 0)
        if gpus and available < slots:
            ray.shutdown()
            raise UserError(f"--workers {slots} needs {slots} GPUs, the cluster has {available:.0f}; lower --workers")
        return None
    temp = scratch.new_folder("ray")
    with _sigterm_kept():
        ray.init(
            num_cpus=slots + 1,
            num_gpus=slots if gpus else 0,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=os.fspath(temp),
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    return temp


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Give SIGTERM back to its handler: Ray's core takes it for itself, prints a stack and aborts the process."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _one_line(error: BaseException) -> str:
    """Return the first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
