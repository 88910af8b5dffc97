"""The devices of a study: the GPUs of this machine or of a cluster, or the CPU; and the facts of this machine."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from search_spaces import HardwareProfile, hardware_named
from storage.records import JsonScalar
from tuner import __version__, gpu
from tuner.errors import InfrastructureError, SettingError, UserError
from tuner.executors.node_facts import NodeFacts
from tuner.executors.ray_environment import set_ray_environment

_MACHINE_FACTS = ("python", "cpu", "cores", "cores_usable", "memory_gib", "platform")


@dataclass(frozen=True)
class Devices:
    """The workers' devices: one name for each worker, all of the kind of `profile`, and the GPUs' driver versions."""

    names: tuple[str, ...]
    profile: HardwareProfile
    gpus: bool
    drivers: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterDevices:
    """The devices of a cluster, and the path of vLLM on its nodes."""

    devices: Devices
    vllm: str


def find_devices(workers: int | None) -> Devices:
    """Return the devices of this machine.

    Args:
        workers: how many; None: one for each GPU, or one on the CPU.

    Raises:
        UserError: for less than one worker or more workers than GPUs, or a GPU that does not answer.
    """
    if workers is not None and workers < 1:
        raise SettingError("workers", workers, "at least 1 is needed")
    devices = gpu.devices()
    if not devices:
        count = workers or 1
        return Devices(tuple("cpu" for _ in range(count)), hardware_named("cpu"), gpus=False)
    count = workers or len(devices)
    if count > len(devices):
        rule = f"this machine has {len(devices)} GPUs and each worker needs one"
        raise SettingError("workers", count, rule, "lower it, or leave it out")
    names = tuple(devices[0].name for _ in range(count))
    profile = gpu.hardware_profile(devices[0].index)
    if profile is None:
        raise _silent(devices[0])
    return Devices(names, profile, gpus=True, drivers=(devices[0].driver,))


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


def find_cluster_devices(address: str, workers: int | None, vllm: str | None, home: Path) -> ClusterDevices:
    """Join a cluster and return its devices.

    Nodes without a GPU take no trials if other nodes have one.

    Args:
        address: of the cluster's head.
        workers: how many; None: one for each GPU, or one on the CPU.
        vllm: the vLLM executable on the nodes; None: the one that each finds.
        home: folder of caches on the nodes.

    Raises:
        SettingError: if no cluster answers, it has too few GPUs or different ones, or a node has no usable vLLM.
        InfrastructureError: if a node does not answer.
    """
    set_ray_environment(address)
    from tuner.executors.ray_cluster import look_at_cluster

    return choose_devices(look_at_cluster(address, vllm, home), workers, vllm)


def leave_cluster() -> None:
    """Disconnect this process from the cluster that `find_cluster_devices` joined."""
    from tuner.executors.ray_cluster import leave_cluster

    leave_cluster()


def choose_devices(nodes: Sequence[NodeFacts], workers: int | None, vllm: str | None) -> ClusterDevices:
    """Return the devices that a study uses on the nodes of a cluster; see `find_cluster_devices`."""
    if workers is not None and workers < 1:
        raise SettingError("workers", workers, "at least 1 is needed")
    with_gpu = [node for node in nodes if node.gpus]
    used = with_gpu or list(nodes)
    _check_vllm(used, vllm)
    executable = used[0].vllm
    assert executable is not None
    if not with_gpu:
        return ClusterDevices(Devices(("cpu",) * (workers or 1), hardware_named("cpu"), gpus=False), executable)
    names = [name for node in with_gpu for name in node.gpus]
    if len(set(names)) > 1:
        kinds = ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names)))
        rule = f"the cluster has different GPUs ({kinds}), and a study needs one kind"
        raise SettingError("ray_address", None, rule, "start a cluster of nodes with the same GPUs")
    count = workers or len(names)
    if count > len(names):
        rule = f"the cluster has {len(names)} GPUs and each worker needs one"
        raise SettingError("workers", count, rule, "lower it, or leave it out")
    profile = with_gpu[0].profile
    if profile is None:
        raise InfrastructureError(f"the GPU of node {with_gpu[0].host} does not answer; see `nvidia-smi` there")
    drivers = tuple(sorted({node.driver for node in with_gpu if node.driver}))
    return ClusterDevices(Devices(tuple(names[:count]), profile, gpus=True, drivers=drivers), executable)


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
