"""An executor of Ray actors, one per device, or one for each group of GPUs that a trial may use.

Trials that use fewer GPUs than a worker has run beside each other in its actor: slot `w` has those that begin at the
first GPU of worker w, and the slots after the workers' have those that begin at its other GPUs. A trial of n GPUs
begins at a multiple of n, so that four GPUs take two trials of two.

An actor that ends returns its trial as `worker_lost`, and so do all actors of a local Ray whose central processes end:
that Ray is started again. The actor that replaces another ends the processes that the first one left.

A slot whose actor has not started takes no trial. On a cluster this lasts until a node has room for the actor, at most
`WORKER_START_S` seconds. An actor that fails to start is requested again after `RETRY_S` seconds.

Call `tuner.executors.ray_environment.set_ray_environment` before this module is imported.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from records.trials import Failure, FailureKind, Phase, Provenance, TrialOutcome
from storage.errors import first_line
from tuner.clock import moment_after
from tuner.engines.base import EngineInfo
from tuner.errors import InfrastructureError, TunerError
from tuner.executors import ray_worker
from tuner.executors.base import Finished, WorkerState
from tuner.executors.ray_start import NOTICE_S, LocalRay, join_cluster, require_gpus, start_local
from tuner.executors.ray_worker import MakeEngine, Slot, WorkerResult, start_group
from tuner.processes.family import send_signal, wait_until_gone
from tuner.specs import TrialSpec

WORKER_START_S = 600.0
ENGINE_INFO_S = 1200.0
CLOSE_S = 120.0
LOOK_S = 1.0
"""Seconds between two looks at a local Ray whose worker is waited for."""
RETRY_S = 30.0
"""Seconds between the failed start of a worker and the next request."""

_log = logging.getLogger(__name__)


def widest(gpu: int, gpus: int) -> int:
    """Return the most GPUs of a trial that begins at a GPU of a worker: a divisor of its number, within the worker."""
    return max((count for count in range(1, gpus - gpu + 1) if gpu % count == 0), default=1)


class RayEnded(InfrastructureError):
    """The central processes of the local Ray ended."""


class RayExecutor:
    """Runs each trial on a Ray actor; see `Executor`."""

    def __init__(
        self,
        make_engine: MakeEngine,
        devices: list[str],
        *,
        gpus: int,
        nodes: int = 1,
        provenance: Provenance,
        records: Path,
        address: str | None = None,
        beside: bool = False,
    ) -> None:
        """Start Ray and one actor for each name in `devices`.

        Args:
            make_engine: builds a worker's engine from its slot.
            devices: a name for each worker's device, for the record.
            gpus: that each worker gets of its own (Ray sets CUDA_VISIBLE_DEVICES); 0: none.
            nodes: over which Ray spreads each worker evenly; for several, `make_engine` is an `EngineFactory`.
            provenance: of the outcomes of lost workers.
            records: folder of the records of a local Ray's processes.
            address: a cluster to join; None starts a Ray of this command.
            beside: whether trials that use fewer GPUs run beside each other on those of a worker, which is on one node;
                `make_engine` then builds engines on one of them, too.

        Raises:
            SettingError: if the cluster cannot be joined, or has too few GPUs.
            InfrastructureError: if Ray does not start on this machine.
        """
        self._make_engine = make_engine
        self._gpus, self._nodes = gpus, nodes
        self._provenance, self._records = provenance, records
        self._noticed = 0.0
        self._local: LocalRay | None = None
        if address is None:
            self._local = start_local(len(devices), len(devices) * gpus, records)
        else:
            join_cluster(address)
            if gpus:
                require_gpus(len(devices), gpus)
        self._slots = [Slot(index, device) for index, device in enumerate(devices)]
        self._all = list(self._slots)
        for entry, number in product(self._slots, range(1, gpus if beside and nodes == 1 else 1)):
            self._all.append(Slot(len(self._all), entry.device.rpartition(" × ")[2], entry, number))
        for entry in self._slots:
            self._start_actor(entry)
        if self._local is not None:
            self._local.watch_calmly()

    def _start_actor(self, entry: Slot) -> None:
        """Request an actor for a slot; on several nodes, the actors that are left of an earlier request end."""
        if self._nodes > 1 and entry.group is not None:
            entry.group.end()
        entry.group = start_group(self._make_engine, entry.index, self._gpus // self._nodes, self._nodes)
        entry.identity, entry.process = entry.actor.identity.remote(), None
        entry.requested, entry.retry_at = time.monotonic(), 0.0

    @property
    def slots(self) -> int:
        return len(self._slots)

    def engine_info(self) -> EngineInfo:
        """Return what is installed on the first worker."""
        first = self._slots[0]
        try:
            try:
                return self._ask_engine(first)
            except (RayActorError, RayEnded):  # it was killed while it started: try once more
                if self._local is not None and not self._local.is_alive():
                    self._restart(self._local)
                else:
                    self._start_actor(first)
                return self._ask_engine(first)
        except RayTaskError as error:
            if isinstance(error.cause, TunerError):
                raise error.cause from None
            raise
        except RayError as error:
            raise InfrastructureError(f"a Ray worker could not start: {first_line(error)}") from error

    def _ask_engine(self, entry: Slot) -> EngineInfo:
        self._wait_for(entry.identity, "the first Ray worker to start", WORKER_START_S)
        info = self._wait_for(entry.actor.info.remote(), "the first worker to read the engine's version", ENGINE_INFO_S)
        assert isinstance(info, EngineInfo)
        return info

    def _wait_for(self, reference: Any, description: str, timeout_s: float) -> Any:
        """Return an actor's answer; every `NOTICE_S` seconds log what is waited for.

        Raises:
            RayEnded: if the central processes of the local Ray end.
            InfrastructureError: if there is no answer within `timeout_s` seconds.
            RayError: if the actor failed.
        """
        begun = noticed = time.monotonic()
        while not ray.wait([reference], timeout=LOOK_S)[0]:
            if self._local is not None and not self._local.is_alive():
                raise RayEnded(f"Ray ended while the tuner waited for {description}; run the same command again")
            now = time.monotonic()
            if now - begun > timeout_s:
                raise InfrastructureError(f"waited {now - begun:.0f} s for {description}; see `ray status`")
            if now - noticed > NOTICE_S:
                noticed = now
                _log.warning("waiting for %s (%.0f s of at most %.0f s)", description, now - begun, timeout_s)
        return ray.get(reference)

    def idle(self) -> list[int]:
        self._note_started()
        return [entry.index for entry in self._all if self._is_idle(entry)]

    def _is_idle(self, entry: Slot) -> bool:
        """Return whether no trial uses the GPU at which those of a slot begin, and its worker has started."""
        return entry.worker.process is not None and not self._used(entry, range(entry.gpu, entry.gpu + 1))

    def _used(self, entry: Slot, numbers: range) -> bool:
        """Return whether a trial of a slot's worker has one of some GPUs."""
        own = [each for each in self._all if each.worker is entry.worker]
        return any(each.uses(number) for each in own for number in numbers)

    def fits(self, slot: int, gpus: int) -> bool:
        entry, most = self._all[slot], max(self._gpus, 1)
        gpus = min(gpus, most)  # a worker without GPUs runs one trial, also one of several ranks
        aligned = entry.gpu % gpus == 0 and entry.gpu + gpus <= most
        return aligned and not self._used(entry, range(entry.gpu, entry.gpu + gpus))

    def starting(self) -> list[int]:
        self._note_started()
        return [entry.index for entry in self._slots if entry.process is None]

    def _note_started(self) -> None:
        """Read the processes of the workers that have started; request a new worker for one that could not."""
        waiting = {entry.identity: entry for entry in self._slots if entry.process is None}
        if not waiting:
            return
        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        now = time.monotonic()
        for entry in (waiting[reference] for reference in ready):
            if now < entry.retry_at:
                continue
            try:
                entry.process = ray.get(entry.identity)
            except RayError as error:
                if entry.retry_at == 0.0:  # it has failed just now
                    entry.retry_at = now + RETRY_S
                    _log.warning("worker w%d did not start: %s", entry.index, first_line(error))
                    continue
                requested = entry.requested
                self._start_actor(entry)
                entry.requested = requested  # the deadline counts from the first request

    def submit(self, spec: TrialSpec, slot: int) -> None:
        used = spec.launch.gpus(self._gpus)
        if slot not in self.idle() or not self.fits(slot, used):
            raise ValueError(f"slot {slot} is busy, too small or does not exist; idle: {self.idle()}")
        entry = self._all[slot]
        entry.spec, entry.since, entry.started_at = spec, time.monotonic(), datetime.now(UTC)
        entry.used, entry.runs_on = used, entry.worker.group
        carry = self._local is None
        if carry:
            ray_worker.mark_folder(spec.artifacts)
        most = widest(entry.gpu, self._gpus)
        entry.reference = entry.actor.run.remote(spec, entry.device, entry.gpu, most, carry=carry)

    def wait_any(self, timeout_s: float) -> list[Finished]:
        if self._local is not None and not self._local.is_alive():
            return self._restart(self._local)
        starting = self.starting()
        running = {entry.reference: entry for entry in self._all if entry.reference is not None}
        if not running:
            self._wait_for_workers(starting, timeout_s)
            return []
        ready, _ = ray.wait(list(running), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
        return [self._collect(running[reference]) for reference in ready]

    def _wait_for_workers(self, starting: list[int], timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for a worker to start, if no slot is idle.

        Raises:
            InfrastructureError: if a worker has not started `WORKER_START_S` seconds after its request.
        """
        if not starting:
            return
        ray.wait([self._slots[slot].identity for slot in starting], num_returns=1, timeout=timeout_s)
        now = time.monotonic()
        waited = max(now - self._slots[slot].requested for slot in starting)
        names = ", ".join(f"w{slot}" for slot in starting)
        if waited > WORKER_START_S:
            raise InfrastructureError(
                f"Ray has had no room for worker {names} for {waited:.0f} s: a node is lost or busy; see `ray status`, "
                "then run the same command again"
            )
        if waited > NOTICE_S and now - self._noticed > NOTICE_S:
            self._noticed = now
            _log.warning("waiting for Ray to start worker %s (%.0f s of at most %.0f s)", names, waited, WORKER_START_S)

    def _restart(self, dead: LocalRay) -> list[Finished]:
        """Start the local Ray again after its central processes ended; return the running trials as lost."""
        _log.warning("Ray ended; starting it again")
        kind, why = FailureKind.WORKER_LOST, "Ray ended while the trial ran"
        busy = [(entry, entry.spec) for entry in self._all if entry.spec is not None]
        lost = [Finished(spec, self._lost(entry, kind, why), entry.index) for entry, spec in busy]
        self._local = None
        dead.stop()
        processes = [entry.process for entry in self._slots if entry.process is not None]
        for process in processes:
            send_signal(process, signal.SIGKILL)
        wait_until_gone(processes, CLOSE_S)
        self._local = start_local(len(self._slots), len(self._slots) * self._gpus, self._records)
        for entry in self._all:
            entry.free()
        for entry in self._slots:
            self._start_actor(entry)
        self._local.watch_calmly()
        return lost

    def _collect(self, entry: Slot) -> Finished:
        spec = entry.spec
        assert spec is not None
        try:
            result: WorkerResult = ray.get(entry.reference)
            outcome = result.outcome
            ray_worker.bring_back(result.files, spec.artifacts)
            if outcome.failure is not None and outcome.failure.kind is FailureKind.WORKER_LOST:
                self._replace_worker(entry)  # another node of the worker was lost
        except RayTaskError as error:
            outcome = self._lost(entry, FailureKind.TUNER_ERROR, f"the worker raised {first_line(error)}")
        except RayError as error:
            outcome = self._lost(entry, FailureKind.WORKER_LOST, f"the worker was lost: {first_line(error)}")
            self._replace_worker(entry)
        ray_worker.unmark_folder(spec.artifacts)
        entry.free()
        return Finished(spec, outcome, entry.index)

    def _replace_worker(self, entry: Slot) -> None:
        """Start a worker in place of the one that lost a trial, once for all trials that it ran beside each other."""
        if entry.worker.group is entry.runs_on:
            self._start_actor(entry.worker)

    def _lost(self, entry: Slot, kind: FailureKind, message: str) -> TrialOutcome:
        assert entry.spec is not None
        assert entry.started_at is not None
        return TrialOutcome(
            started_at=entry.started_at,
            ended_at=moment_after(entry.started_at, entry.since),
            provenance=self._provenance,
            worker=f"w{entry.worker.index}",
            device=entry.device,
            timings={},
            artifacts=os.fspath(entry.spec.artifacts),
            failure=Failure(kind, Phase.LAUNCH, message),
        )

    def cancel(self) -> None:
        for entry in self._all:
            if entry.spec is not None:
                entry.actor.cancel.remote(entry.spec.uid)

    def states(self) -> list[WorkerState]:
        busy = {entry.index: entry.spec.uid for entry in self._all if entry.spec is not None}
        phases: dict[int, Phase | None] = {}
        try:
            answers = ray.get([self._all[slot].actor.phase.remote(uid) for slot, uid in busy.items()], timeout=0.5)
            phases = dict(zip(busy, answers, strict=True))
        except RayError:
            pass  # a lost worker has no phase
        now = time.monotonic()
        return [
            WorkerState(
                entry.index,
                entry.device,
                entry.spec.uid if entry.spec else None,
                phases.get(entry.index),
                now - entry.since if entry.spec else 0.0,
            )
            for entry in self._all
            if entry.worker_slot is None or entry.spec is not None
        ]

    def close(self) -> None:
        """Cancel the running trials, stop every server, end the workers, and stop a Ray of this command."""
        if not self._slots:
            return
        if self._local is None or self._local.is_alive():
            self._close_workers()
        self._slots = self._all = []
        if self._local is not None:
            self._local.stop()
        else:
            ray.shutdown()

    def _close_workers(self) -> None:
        """End the workers, those that have started after they have stopped their servers."""
        self.cancel()
        started = [entry for entry in self._slots if entry.process is not None]
        endings = [each.close.remote() for entry in started for each in (entry.actor, *entry.group.others)]
        running = [each.reference for each in self._all if each.worker in started and each.reference is not None]
        if endings:
            ray.wait([*endings, *running], num_returns=len(endings) + len(running), timeout=CLOSE_S)
        for entry in self._slots:
            entry.group.end()
