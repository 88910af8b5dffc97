"""The actors of one worker: on one node, or on several that Ray reserves together.

The first node has the worker; each other node has a `RankActor`, which runs a rank of the worker's servers. Call
`tuner.executors.ray_environment.set_ray_environment` before this module is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import RayError
from ray.util import get_node_ip_address, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from storage.errors import first_line
from storage.records import Failure, FailureKind, Phase
from tuner.engines.base import Engine, EngineSettings
from tuner.engines.vllm.nodes.host import RankHost
from tuner.engines.vllm.nodes.rank import RankEnd, RankNode, RankStart, RankStopped
from tuner.executors.ray_worker import RayWorker, restore_omp_threads

START_S = 300.0
"""How long a node may take to start a rank: its actor starts, and its GPUs become free."""

STOP_S = 60.0
"""How long a node may take to end a rank, beside the rank's own time."""


class NodesFactory(Protocol):
    """Builds the engine of a worker; picklable. See `EngineFactory`."""

    @property
    def settings(self) -> EngineSettings:
        """The settings of the engine."""

    def __call__(self, slot: int) -> Engine:
        """Return the engine of a worker on one node."""

    def over_nodes(self, settings: EngineSettings, nodes: tuple[RankNode, ...], address: str) -> Engine:
        """Return the engine of a worker on several nodes, the first of which runs this."""

    def rank_host(self, address: str) -> RankHost:
        """Return what runs ranks on another node."""


def own_address() -> str:
    """Return the address at which other nodes of the cluster reach this one."""
    address: str = get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


class RankActor:
    """The actor class of another node; see `RankHost`."""

    def __init__(self, factory: NodesFactory, omp_threads: str | None) -> None:
        restore_omp_threads(omp_threads)
        self._host = factory.rank_host(own_address())

    def start(self, rank: RankStart) -> Failure | None:
        """Start a rank; return why it cannot be started."""
        return self._host.start(rank)

    def wait_end(self) -> RankEnd | None:
        """Wait until the rank ends; None once it is to be stopped."""
        return self._host.wait_end()

    def stop(self, grace_s: float) -> RankStopped:
        """End the rank."""
        return self._host.stop(grace_s)

    def close(self) -> None:
        """End the rank and remove temporary folders."""
        self._host.close()


class RayNode:
    """Another node, as the worker reaches it: see `RankNode`. A call that Ray cannot answer means that it is lost."""

    def __init__(self, actor: Any, name: str) -> None:
        self._actor = actor
        self._name = name
        self._end: Any = None
        self._stop: Any = None
        self._grace_s = 0.0

    @property
    def name(self) -> str:
        """See `RankNode`."""
        return self._name

    def start(self, rank: RankStart) -> Failure | None:
        """See `RankNode`."""
        try:
            failure: Failure | None = ray.get(self._actor.start.remote(rank), timeout=START_S)
        except RayError as error:
            return Failure(FailureKind.WORKER_LOST, Phase.LAUNCH, f"it was lost: {first_line(error)}")
        self._end = None if failure is not None else self._actor.wait_end.remote()
        return failure

    def ended(self, timeout_s: float) -> RankEnd | None:
        """See `RankNode`."""
        if self._end is None or not ray.wait([self._end], timeout=timeout_s)[0]:
            return None
        try:
            end: RankEnd | None = ray.get(self._end)
        except RayError as error:
            return RankEnd("", None, first_line(error))
        return end

    def request_stop(self, grace_s: float) -> None:
        """See `RankNode`."""
        self._grace_s = grace_s
        self._stop = self._actor.stop.remote(grace_s)

    def stopped(self) -> RankStopped:
        """See `RankNode`."""
        try:
            stopped: RankStopped = ray.get(self._stop, timeout=self._grace_s + STOP_S)
        except RayError:
            return RankStopped(b"")
        finally:
            self._end = None
        return stopped


@dataclass(frozen=True)
class OverNodes:
    """Builds the engine of a worker that has other nodes; picklable."""

    factory: NodesFactory
    nodes: tuple[RayNode, ...]

    def __call__(self, slot: int) -> Engine:
        """Return the engine of the worker, on whose node this runs."""
        del slot
        return self.factory.over_nodes(self.factory.settings, self.nodes, own_address())


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


def start_group(factory: Callable[[int], Engine], slot: int, gpus: int, nodes: int) -> Group:
    """Request the actors of one worker; they start once Ray has room for all of them.

    Args:
        factory: builds the worker's engine from its slot; a `NodesFactory` for several nodes.
        slot: number of the worker.
        gpus: of the worker on each of its nodes; 0: none.
        nodes: of the worker.
    """
    omp = os.environ.get("OMP_NUM_THREADS")
    options: dict[str, Any] = {"num_cpus": 0 if gpus else 1, "num_gpus": gpus, "max_concurrency": 4}
    if nodes == 1:
        return Group(ray.remote(RayWorker).options(**options).remote(factory, slot, omp))
    bundle = {"GPU": float(gpus)} if gpus else {"CPU": 1.0}
    placement = placement_group([bundle] * nodes, strategy="STRICT_SPREAD")
    spread: Any = factory

    def start(index: int, actor: Any, *arguments: Any) -> Any:
        strategy = PlacementGroupSchedulingStrategy(placement, placement_group_bundle_index=index)
        return ray.remote(actor).options(**options, scheduling_strategy=strategy).remote(*arguments)

    others = tuple(start(index, RankActor, spread, omp) for index in range(1, nodes))
    ranks = tuple(RayNode(actor, f"{index + 1} of {nodes}") for index, actor in enumerate(others, start=1))
    return Group(start(0, RayWorker, OverNodes(spread, ranks), slot, omp), others, placement)
