"""One Ray worker: its actor class on one or several nodes, what the driver knows of it, and the files it brings.

The first of several nodes has the worker (`RayWorker`); each other node has a `RankActor`, which runs a rank of the
worker's servers.

The driver writes a marker into the trial's folder before it submits the trial. A worker that does not find the marker
works in a temporary folder of its own and returns the files as an archive.

Call `tuner.executors.ray_environment.set_ray_environment` before this module is imported.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import ray
from ray.exceptions import RayError
from ray.util import get_node_ip_address, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from records.trials import Failure, FailureKind, Phase, TrialOutcome
from storage.errors import first_line
from tuner import scratch
from tuner.engines.base import Engine, EngineInfo, EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.vllm.engine import VllmEngine
from tuner.engines.vllm.nodes import RankEnd, RankHost, RankStart, RankStopped
from tuner.files import be_private
from tuner.processes.family import Identity, own_identity
from tuner.processes.records import reap_orphans
from tuner.specs import TrialSpec
from tuner.trial.pipeline import run_trial

_log = logging.getLogger(__name__)

MakeEngine = Callable[[int], Engine]
"""Builds a worker's engine from its slot; pickled to the actor."""


@runtime_checkable
class OnSomeGpus(Protocol):
    """A `MakeEngine` that also builds engines on some of a worker's GPUs, as `EngineFactory` does."""

    def on_gpus(self, first: int, count: int) -> MakeEngine:
        """Return what builds them."""


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
    """The actor class: one engine in a process of its own, and one more for each GPU at which further trials begin."""

    def __init__(self, make_engine: MakeEngine, slot: int, omp_threads: str | None) -> None:
        restore_omp_threads(omp_threads)
        be_private()  # a worker of another host has no umask of the driver's
        self._make_engine = make_engine
        self._engines = {0: make_engine(slot)}
        self._slot = slot
        self._cancelled: dict[str, threading.Event] = {}
        self._phases: dict[str, Phase] = {}

    def info(self) -> EngineInfo:
        """Return what is installed."""
        return self._engines[0].info()

    def identity(self) -> Identity:
        """Return the worker's process."""
        return own_identity()

    def run(self, spec: TrialSpec, device: str, gpu: int, most: int, *, carry: bool) -> WorkerResult:
        """Run one attempt at a trial.

        Args:
            spec: the trial.
            device: name of the device, for the record.
            gpu: the first of the worker's GPUs that the trial has.
            most: GPUs that trials which begin there may have.
            carry: whether to return the trial's files if this host does not have the driver's folder.
        """
        if not carry or is_shared(spec.artifacts):
            return WorkerResult(self._run(spec, device, gpu, most), None)
        folder = scratch.new_folder("trial")
        try:
            outcome = self._run(replace(spec, artifacts=folder), device, gpu, most)
            files = pack_files(folder, os.uname().nodename)
            return WorkerResult(replace(outcome, artifacts=os.fspath(spec.artifacts)), files)
        finally:
            scratch.remove(folder)

    def _run(self, spec: TrialSpec, device: str, gpu: int, most: int) -> TrialOutcome:
        worker = f"w{self._slot}@{os.uname().nodename}"
        cancelled, report = self._event(spec.uid), partial(self._phases.__setitem__, spec.uid)
        try:
            return run_trial(self._engine(gpu, most), spec, cancelled, worker=worker, device=device, report=report)
        finally:
            self._phases.pop(spec.uid, None)
            del self._cancelled[spec.uid]

    def _engine(self, gpu: int, most: int) -> Engine:
        """Return the engine of the trials that begin at one of the worker's GPUs; one trial at a time begins there."""
        if gpu not in self._engines:
            assert isinstance(self._make_engine, OnSomeGpus)
            self._engines[gpu] = self._make_engine.on_gpus(gpu, most)(self._slot)
        return self._engines[gpu]

    def _event(self, uid: str) -> threading.Event:
        return self._cancelled.setdefault(uid, threading.Event())

    def phase(self, uid: str) -> Phase | None:
        """Return the phase of a running trial."""
        return self._phases.get(uid)

    def cancel(self, uid: str) -> None:
        """Cancel a trial, also one that was submitted and has not begun."""
        self._event(uid).set()

    def close(self) -> None:
        """Close the engines, which stops their servers."""
        for engine in list(self._engines.values()):
            engine.close()


@dataclass
class Slot:
    """The driver's view of one worker, or of one of its GPUs beside the first.

    Args:
        index: number of the slot.
        device: name of the worker's device.
        worker_slot: of a GPU beside the first: the slot of its worker, which has the fields up to `process`; None: this
            is the worker's own.
        gpu: number of the first GPU of its trials among those of the worker.
        group: the actors of the worker.
        identity: reference to the actor's process, which is ready once the actor has started.
        requested: when the actor was requested, by `time.monotonic`.
        retry_at: when another actor is requested after one failed to start, by `time.monotonic`; 0: none has failed.
        process: the worker's process, once known; of use only if it runs on this host.
        spec: the running trial; None: idle.
        used: GPUs of the running trial.
        runs_on: the actors that run it.
        reference: to the outcome of the running trial.
        since: when the trial was submitted, by `time.monotonic`.
        started_at: the same by the wall clock.
    """

    index: int
    device: str
    worker_slot: Slot | None = None
    gpu: int = 0
    group: Any = None
    identity: Any = None
    requested: float = 0.0
    retry_at: float = 0.0
    process: Identity | None = None
    spec: TrialSpec | None = None
    used: int = 0
    runs_on: Any = None
    reference: Any = None
    since: float = 0.0
    started_at: datetime | None = None

    @property
    def worker(self) -> Slot:
        """The slot of the worker."""
        return self.worker_slot or self

    @property
    def actor(self) -> Any:
        """The actor that runs trials."""
        return self.worker.group.worker

    def uses(self, gpu: int) -> bool:
        """Return whether its trial has one of the worker's GPUs."""
        return self.spec is not None and self.gpu <= gpu < self.gpu + self.used

    def free(self) -> None:
        """Forget the trial."""
        self.spec = self.reference = self.started_at = self.runs_on = None
        self.used = 0


RANK_START_S = 300.0
"""How long a node may take to start a rank: its actor starts, and its GPUs become free."""

RANK_STOP_S = 60.0
"""How long a node may take to end a rank, beside the rank's own time."""


def own_address() -> str:
    """Return the address at which other nodes of the cluster reach this one."""
    address: str = get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


class RankActor(RankHost):
    """The actor class of another node."""

    def __init__(self, settings: EngineSettings, omp_threads: str | None) -> None:
        restore_omp_threads(omp_threads)
        super().__init__(settings, own_address())


class RayNode:
    """Another node, as the worker reaches it: see `RankNode`. A call that Ray cannot answer means that it is lost."""

    def __init__(self, actor: Any, name: str) -> None:
        self.name = name
        self._actor = actor
        self._end: Any = None
        self._stop: Any = None
        self._grace_s = 0.0

    def start(self, rank: RankStart) -> Failure | None:
        try:
            failure: Failure | None = ray.get(self._actor.start.remote(rank), timeout=RANK_START_S)
        except RayError as error:
            return Failure(FailureKind.WORKER_LOST, Phase.LAUNCH, f"it was lost: {first_line(error)}")
        self._end = None if failure is not None else self._actor.wait_end.remote()
        return failure

    def ended(self, timeout_s: float) -> RankEnd | None:
        if self._end is None or not ray.wait([self._end], timeout=timeout_s)[0]:
            return None
        try:
            end: RankEnd | None = ray.get(self._end)
        except RayError as error:
            return RankEnd("", None, first_line(error))
        return end

    def request_stop(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._stop = self._actor.stop.remote(grace_s)

    def stopped(self) -> RankStopped:
        try:
            stopped: RankStopped = ray.get(self._stop, timeout=self._grace_s + RANK_STOP_S)
        except RayError:
            return RankStopped(b"")
        finally:
            self._end = None
        return stopped


def engine_over_nodes(settings: EngineSettings, nodes: tuple[RayNode, ...], slot: int) -> Engine:
    """Return the engine of the worker in a slot, on whose node this runs, and which has other nodes."""
    reap_orphans(settings.home / "processes")
    return VllmEngine(settings, nodes, own_address())


@dataclass
class Group:
    """The actors of one worker.

    Args:
        worker: the actor that runs trials.
        others: actors of its other nodes.
        placement: what Ray reserves for them together; None on one node.
    """

    worker: Any
    others: tuple[Any, ...] = ()
    placement: Any = field(default=None)

    def end(self) -> None:
        """Kill the actors, and give back what Ray reserves. Their watchdogs end what they started."""
        for actor in (self.worker, *self.others):
            ray.kill(actor)
        if self.placement is not None:
            remove_placement_group(self.placement)


def start_group(factory: MakeEngine, slot: int, gpus: int, nodes: int) -> Group:
    """Request the actors of one worker; they start once Ray has room for all of them.

    Args:
        factory: builds the worker's engine from its slot; an `EngineFactory` for several nodes.
        slot: number of the worker.
        gpus: of the worker on each of its nodes; 0: none.
        nodes: of the worker.
    """
    omp = os.environ.get("OMP_NUM_THREADS")
    options: dict[str, Any] = {"num_cpus": 0 if gpus else 1, "num_gpus": gpus, "max_concurrency": 3 + max(gpus, 1)}
    if nodes == 1:
        return Group(ray.remote(RayWorker).options(**options).remote(factory, slot, omp))
    bundle = {"GPU": float(gpus)} if gpus else {"CPU": 1.0}
    placement = placement_group([bundle] * nodes, strategy="STRICT_SPREAD")
    assert isinstance(factory, EngineFactory)
    settings = factory.settings

    def start(index: int, actor: Any, *arguments: Any) -> Any:
        strategy = PlacementGroupSchedulingStrategy(placement, placement_group_bundle_index=index)
        return ray.remote(actor).options(**options, scheduling_strategy=strategy).remote(*arguments)

    others = tuple(start(index, RankActor, settings, omp) for index in range(1, nodes))
    ranks = tuple(RayNode(actor, f"{index + 1} of {nodes}") for index, actor in enumerate(others, start=1))
    return Group(start(0, RayWorker, partial(engine_over_nodes, settings, ranks), slot, omp), others, placement)


MARKER = ".driver"
MAX_BYTES = 256 * 1024 * 1024
"""Size of the files of one trial that are carried, before compression."""
LEFT_OUT = "left_on_node.txt"
"""A list of the files that were too large."""


def mark_folder(folder: Path) -> None:
    """Write the marker into a trial's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()


def unmark_folder(folder: Path) -> None:
    """Remove the marker."""
    (folder / MARKER).unlink(missing_ok=True)


def is_shared(folder: Path) -> bool:
    """Return whether a worker uses the folder that the driver marked."""
    return (folder / MARKER).exists()


def pack_files(folder: Path, host: str) -> bytes:
    """Return the files of a folder as a compressed archive, the smallest first, of at most `MAX_BYTES` in all.

    Links are left out.
    """
    regular = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    files = sorted((path.stat().st_size, path) for path in regular)
    buffer, total, left_out = io.BytesIO(), 0, []
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for size, path in files:
            name = path.relative_to(folder).as_posix()
            total += size
            if total > MAX_BYTES:
                left_out.append(f"{name}: {size} bytes, removed from {host}\n")
                continue
            archive.add(path, arcname=name)
        if left_out:
            text = "".join(left_out).encode()
            entry = tarfile.TarInfo(LEFT_OUT)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


def bring_back(archive: bytes | None, folder: Path) -> None:
    """Write the files of an archive, if there is one; a failure is logged, and the trial's outcome counts."""
    if archive is None:
        return
    try:
        unpack_files(archive, folder)
    except (OSError, tarfile.TarError) as error:
        _log.warning("the files of a trial cannot be written to %s: %s", folder, error)


def unpack_files(archive: bytes, folder: Path) -> None:
    """Write the files of an archive into a trial's folder.

    Raises:
        OSError: if they cannot be written.
        tarfile.TarError: for a name that leads out of the folder, a link, a device, or data that is no archive.
    """
    root = folder.resolve()
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
        for entry in files:  # the filters of `extractall` are in 3.11.4, and Debian 12 has 3.11.2
            path = (root / entry.name).resolve()
            content = files.extractfile(entry) if entry.isfile() and path.is_relative_to(root) else None
            if content is None:
                raise tarfile.TarError(f"{entry.name!r} is no file of this folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            with content, path.open("wb") as file:
                shutil.copyfileobj(content, file)
