"""The devices of a study: GPUs of this machine or of a cluster, or the CPU, and whether a node can run trials."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from records.trials import JsonScalar
from search_spaces import HardwareProfile, hardware_named
from tuner import __version__, gpu
from tuner.errors import InfrastructureError, SettingError, UserError
from tuner.executors.ray_environment import set_ray_environment
from tuner.files import home

if TYPE_CHECKING:  # Ray reads its variables at its import, so that they are set first
    from tuner.executors.ray_cluster import NodeFacts

_MACHINE_FACTS = ("python", "cpu", "cores", "cores_usable", "memory_gib", "platform")


@dataclass(frozen=True)
class Devices:
    """The workers' devices.

    Attributes:
        names: one for each worker, such as `NVIDIA H200`, or `2 × NVIDIA H200` for a worker with two.
        profile: of one device; all are of its kind.
        gpus: whether they are GPUs.
        drivers: versions of the GPUs' drivers.
        each: GPUs of a worker.
        nodes: over which a worker's GPUs are spread evenly; without GPUs, the machines of a worker.
        idle: GPUs that are left over, too few for a worker.
        vllm: path of vLLM on the nodes of a cluster; None on this machine.
        hosts: names of the nodes of a cluster; empty for this machine.
    """

    names: tuple[str, ...]
    profile: HardwareProfile
    gpus: bool
    drivers: tuple[str, ...] = ()
    each: int = 1
    idle: int = 0
    nodes: int = 1
    vllm: str | None = None
    hosts: tuple[str, ...] = ()

    @property
    def on_node(self) -> int:
        """GPUs of a worker on each of its nodes."""
        return self.each // self.nodes


def find_devices(workers: int | None, gpus_per_trial: int = 1) -> Devices:
    """Return the devices of this machine for so many workers; None: as many as the GPUs allow, or one on the CPU.

    Raises:
        UserError: for more workers than the GPUs allow, or a GPU that does not answer.
    """
    devices = gpu.devices()
    if not devices:
        count = workers or 1
        return Devices(tuple("cpu" for _ in range(count)), hardware_named("cpu"), gpus=False)
    count = _count(workers, [len(devices)], gpus_per_trial, "this machine")
    names = (group_name(devices[0].name, gpus_per_trial),) * count
    profile = gpu.hardware_profile(devices[0].index)
    if profile is None:
        raise _silent(devices[0])
    idle = len(devices) % gpus_per_trial if workers is None else 0
    return Devices(names, profile, gpus=True, drivers=(devices[0].driver,), each=gpus_per_trial, idle=idle)


def refuse_gpus_on_cpu(given: int | None, devices: Devices) -> None:
    """Refuse GPUs for a trial on a machine that has none."""
    if given is not None and given > 1 and not devices.gpus:
        raise SettingError("gpus_per_trial", given, "this machine has no GPU", "leave it out")


def refuse_nodes(nodes: int) -> None:
    """Refuse several nodes for a trial that runs on one machine."""
    if nodes > 1:
        rule = "this study runs on one machine, and its trials have one node"
        raise SettingError("nodes_per_trial", nodes, rule, "leave it out, or run vLLM on a cluster with {ray_address}")


def grouped(devices: Devices, gpus_per_trial: int) -> Devices:
    """Return simulated devices of so many GPUs for each worker."""
    return replace(
        devices, names=tuple(group_name(name, gpus_per_trial) for name in devices.names), each=gpus_per_trial
    )


def group_name(name: str, gpus: int, nodes: int = 1) -> str:
    """Return the name of a worker's devices, such as `2 × NVIDIA H200`, or `2 nodes of 4 × NVIDIA H200`."""
    on_node = name if gpus == nodes else f"{gpus // nodes} × {name}"
    return on_node if nodes == 1 else f"{nodes} nodes of {on_node}"


def _count(workers: int | None, nodes: Sequence[int], gpus_per_trial: int, place: str, spread: int = 1) -> int:
    """Return the number of workers, each spread over so many nodes; messages name the place of the GPUs."""
    if len(nodes) < spread:
        rule = f"{place} has {_counted(len(nodes), 'node')} with GPUs, and a trial needs {spread}"
        raise SettingError("nodes_per_trial", spread, rule, "lower it, or add nodes to the cluster")
    gpus, most = sum(nodes), _most_workers([each * spread // gpus_per_trial for each in nodes], spread)
    if not most and spread > 1:
        rule = f"a trial needs {gpus_per_trial // spread} on each of {spread} nodes, and {place} has {_listed(nodes)}"
        raise SettingError("gpus_per_trial", gpus_per_trial, rule, "lower it, and the parallelism of the server")
    if not most:
        on_one = " on one node" if len(nodes) > 1 else ""
        rule = f"{place} has {_counted(max(nodes))}{on_one}, and a trial needs {gpus_per_trial}"
        raise SettingError("gpus_per_trial", gpus_per_trial, rule, "lower it, and the parallelism of the server")
    if workers is not None and workers > most:
        needs = "one" if gpus_per_trial == 1 else str(gpus_per_trial)
        rule = f"{place} has {_counted(gpus)} and each worker needs {needs}"
        raise SettingError("workers", workers, rule, "lower it, or leave it out")
    return workers or most


def _most_workers(shares: Sequence[int], spread: int) -> int:
    """Return how many workers fit, each with a share of `spread` different nodes that have so many shares."""
    return max(n for n in range(sum(shares) // spread + 1) if sum(min(each, n) for each in shares) >= n * spread)


def _listed(nodes: Sequence[int]) -> str:
    return " and ".join(_counted(gpus) for gpus in sorted(nodes, reverse=True))


def _counted(number: int, noun: str = "GPU") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def devices_by_kind() -> dict[str, tuple[str, ...]]:
    """Return the names of this machine's devices by kind: `cpu:0`, or for each GPU its card and NVML's index.

    Raises:
        UserError: for a GPU that does not answer.
    """
    found = gpu.devices()
    if not found:
        return {"cpu": ("cpu:0",)}
    kinds: dict[str, tuple[str, ...]] = {}
    for device in found:
        profile = gpu.hardware_profile(device.index)
        if profile is None:
            raise _silent(device)
        kinds[profile.key] = (*kinds.get(profile.key, ()), f"{profile.key}:{device.index}")
    return kinds


def _silent(device: gpu.Device) -> UserError:
    return UserError(f"GPU {device.index} ({device.name}) does not answer; see `nvidia-smi`")


def find_cluster_devices(
    address: str, workers: int | None, vllm: str | None, home: Path, gpus_per_trial: int = 1, nodes_per_trial: int = 1
) -> Devices:
    """Join a cluster and return its devices; leave it on an error.

    Ray aborts a process that is still connected when the cluster ends. Nodes without a GPU take no trials if other
    nodes have one.

    Args:
        address: of the cluster's head.
        workers: how many; None: as many as the GPUs allow, or one on the CPU.
        vllm: the vLLM executable on the nodes; None: the one that each finds.
        home: folder of caches on the nodes.
        gpus_per_trial: GPUs of each worker.
        nodes_per_trial: over which they are spread evenly.

    Raises:
        SettingError: if no cluster answers, it has too few GPUs or nodes, or different GPUs, or a node has no
            usable vLLM.
        InfrastructureError: if a node does not answer.
    """
    nodes = _nodes(address, vllm, home)
    try:
        return choose_devices(nodes, workers, vllm, gpus_per_trial, nodes_per_trial)
    except UserError:
        leave_cluster()
        raise


def _nodes(address: str, vllm: str | None, home: Path, *, thorough: bool = False) -> list[NodeFacts]:
    """Join a cluster and return its nodes."""
    set_ray_environment(address)
    from tuner.executors.ray_cluster import look_at_cluster

    return look_at_cluster(address, vllm, home, thorough=thorough)


def leave_cluster() -> None:
    """Disconnect this process from the cluster that `find_cluster_devices` joined."""
    from tuner.executors.ray_cluster import leave_cluster

    leave_cluster()


def choose_devices(
    nodes: Sequence[NodeFacts],
    workers: int | None,
    vllm: str | None,
    gpus_per_trial: int = 1,
    nodes_per_trial: int = 1,
) -> Devices:
    """Return the devices that a study uses on the nodes of a cluster; see `find_cluster_devices`."""
    with_gpu = [node for node in nodes if node.gpus]
    used = with_gpu or list(nodes)
    _check_vllm(used, vllm)
    executable = used[0].vllm
    assert executable is not None
    if not with_gpu:
        return replace(_without_gpus(len(nodes), workers or 1, nodes_per_trial), vllm=executable)
    names = [name for node in with_gpu for name in node.gpus]
    if len(set(names)) > 1:
        kinds = ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names)))
        rule = f"the cluster has different GPUs ({kinds}), and a study needs one kind"
        raise SettingError("ray_address", None, rule, "start a cluster of nodes with the same GPUs")
    count = _count(workers, [len(node.gpus) for node in with_gpu], gpus_per_trial, "the cluster", nodes_per_trial)
    profile = with_gpu[0].profile
    if profile is None:
        raise InfrastructureError(f"the GPU of node {with_gpu[0].host} does not answer; see `nvidia-smi` there")
    drivers = tuple(sorted({node.driver for node in with_gpu if node.driver}))
    workers_of = (group_name(names[0], gpus_per_trial, nodes_per_trial),) * count
    idle = len(names) - count * gpus_per_trial if workers is None else 0
    return Devices(
        workers_of,
        profile,
        gpus=True,
        drivers=drivers,
        each=gpus_per_trial,
        idle=idle,
        nodes=nodes_per_trial,
        vllm=executable,
        hosts=tuple(node.host for node in with_gpu),
    )


def _without_gpus(nodes: int, workers: int, spread: int) -> Devices:
    """Return the devices of a cluster without GPUs, in which a machine counts as one device."""
    if nodes < spread:
        rule = f"the cluster has {_counted(nodes, 'node')}, and a trial needs {spread}"
        raise SettingError("nodes_per_trial", spread, rule, "lower it, or add nodes to the cluster")
    names = (group_name("cpu", spread, spread),) * workers
    return Devices(names, hardware_named("cpu"), gpus=False, each=spread, nodes=spread)


def _check_vllm(nodes: Sequence[NodeFacts], given: str | None) -> None:
    """Refuse nodes without a usable vLLM, and nodes that have it at different paths."""
    without = next((node for node in nodes if node.vllm is None), None)
    if without is not None:
        rule = f"node {without.host} has no vLLM: {without.problem}"
        raise SettingError("vllm", given, rule, "`tuner doctor` with {ray_address} shows every node")
    paths = {node.vllm: node.host for node in nodes}
    if len(paths) > 1:
        places = ", ".join(f"{host}: {path}" for path, host in paths.items())
        raise SettingError(
            "vllm", given, f"the nodes have vLLM at different paths ({places})", "install it at one path"
        )


def this_machine() -> dict[str, JsonScalar]:
    """Return the versions of the tuner, of Python and of the system, the CPU, and the memory in GiB; None: unknown.

    On a cluster it is the machine of the driver. The name of the host is no part of it.
    """
    facts = gpu.host_facts()
    return {"tuner": __version__, "os": _system(), **{name: facts[name] for name in _MACHINE_FACTS}}


def _system() -> str | None:
    """Return the name and version of the distribution, such as `Ubuntu 22.04.5 LTS`; None if it has no such file."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


_MIN_FREE_GIB = 1.0
"""Free disk that a trial's logs and vLLM's compilation caches need at least."""
_MAX_CLOCK_DIFFERENCE_S = 5.0
"""Logs of nodes whose clocks differ by more are hard to compare."""


@dataclass(frozen=True)
class NodeReport:
    """A node's facts, and what keeps it from running trials."""

    facts: NodeFacts
    problems: tuple[str, ...]


def check_cluster(address: str, vllm: str | None) -> list[NodeReport]:
    """Join a cluster, probe every node and leave it.

    Raises:
        SettingError: if no cluster answers.
        InfrastructureError: if a node does not answer.
    """
    nodes = _nodes(address, vllm, home(), thorough=True)
    leave_cluster()
    return report_nodes(nodes)


def report_nodes(nodes: Sequence[NodeFacts]) -> list[NodeReport]:
    """Return a report for each node.

    A node without a GPU takes no trials if another node has one, so it needs no vLLM.
    """
    used = [node for node in nodes if node.gpus] or list(nodes)
    return [NodeReport(node, _problems(node, used)) for node in nodes]


def _problems(node: NodeFacts, used: Sequence[NodeFacts]) -> tuple[str, ...]:
    found = []
    if node.tuner != __version__:
        found.append(f"tuner {node.tuner} is installed; this machine has {__version__}")
    if node in used:
        first = used[0]
        if node.vllm is None:
            found.append(f"no vLLM: {node.problem}")
        elif node.vllm_version is None:
            found.append(f"vLLM does not start: {node.problem}")
        elif (node.vllm, node.vllm_version) != (first.vllm, first.vllm_version):
            found.append(f"vLLM differs from that of node {first.host}")
        if set(node.gpus) != set(first.gpus):
            found.append(f"other GPUs than node {first.host}")
    if node.free_gib < _MIN_FREE_GIB:
        found.append(f"{node.free_gib:.1f} GiB of disk are free; {_MIN_FREE_GIB:.0f} are needed")
    if node.clock_difference_s is not None and abs(node.clock_difference_s) > _MAX_CLOCK_DIFFERENCE_S:
        found.append(f"its clock differs by {node.clock_difference_s:+.0f} s from this machine's")
    return tuple(found)
