"""List GPUs, read their memory and wait until one is free; the only module that uses NVML.

A host without NVML, driver or GPU has no devices; that is never an exception.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import platform
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil

from records.trials import JsonScalar
from search_spaces.catalogue.hardware import HardwareProfile, hardware_named
from search_spaces.errors import SpaceError
from search_spaces.units import GIB
from tuner.cancellation import CancelToken

_POLL_S = 0.2
SLOWDOWNS = {0x08: "the hardware", 0x20: "its temperature", 0x40: "its temperature", 0x80: "its power supply"}
"""NVML's reasons for low clocks that make figures vary, as bits; the power limit is normal under load."""

NOTABLE_SHARE = 0.02
"""Share of the readings with low clocks from which a warning is given."""

_WATCH_S = 1.0
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_SHARED_MEMORY = Path("/dev/shm")


class Nvml(Protocol):
    """The part of `pynvml` that this module uses; tests pass a fake."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetName(self, handle: Any) -> str: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMemoryBusWidth(self, handle: Any) -> int: ...
    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: int) -> int: ...
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int: ...
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int: ...


@dataclass(frozen=True)
class Device:
    """One GPU. `index` is NVML's, in PCI order: a server that gets it also needs `CUDA_DEVICE_ORDER=PCI_BUS_ID`."""

    index: int
    uuid: str
    name: str
    compute_capability: tuple[int, int]
    memory_total_gib: float
    driver: str


@dataclass(frozen=True)
class GpuWait:
    """The end of a wait: whether the memory of a GPU came free, and what is in use; `used_gib` is None if unknown."""

    free: bool
    used_gib: float | None


@functools.cache
def _pynvml() -> Nvml | None:
    try:
        module: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        module.nvmlInit()
    except module.NVMLError:
        return None
    nvml: Nvml = module
    return nvml


def devices(nvml: Nvml | None = None, environment: Mapping[str, str] | None = None) -> list[Device]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; empty without NVML or without a GPU.

    Numbers in CUDA_VISIBLE_DEVICES are taken in PCI order. As in CUDA, the list ends at the first entry that names no
    GPU. Slices of a GPU (`MIG-…`) are not supported.
    """
    nvml = nvml or _pynvml()
    if nvml is None:
        return []
    try:
        found = [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return []
    visible = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else _visible(found, visible)


T = TypeVar("T")


def _read(index: int, nvml: Nvml | None, ask: Callable[[Nvml, Any], T]) -> T | None:
    """Return what NVML says of GPU `index`, given its handle; None without NVML, or if it says nothing."""
    nvml = nvml or _pynvml()
    if nvml is None:
        return None
    try:
        return ask(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    except (nvml.NVMLError, AttributeError):  # an old pynvml has other names for some functions
        return None


def used_memory_gib(index: int, nvml: Nvml | None = None) -> float | None:
    """Return the memory in use on GPU `index` in GiB, by all processes; None if it cannot be read."""
    return _read(index, nvml, lambda nvml, handle: float(nvml.nvmlDeviceGetMemoryInfo(handle).used) / GIB)


def energy_j(index: int, nvml: Nvml | None = None) -> float | None:
    """Return the energy in joules that GPU `index` has taken since its driver was loaded; None without such a counter.

    Cards from Volta on have it; a slice of a GPU (MIG) and many virtual GPUs do not. Its resolution is 1 mJ.
    """
    return _read(index, nvml, lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000.0)


def slowdowns(index: int, nvml: Nvml | None = None) -> tuple[str, ...]:
    """Return what lowers the clocks of GPU `index` now, see `SLOWDOWNS`; none where it cannot be read."""
    bits = _read(index, nvml, lambda nvml, handle: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
    return tuple(dict.fromkeys(name for bit, name in SLOWDOWNS.items() if bits & bit))


class SlowdownWatch:
    """Reads every second, within the context, whether GPUs lower their clocks.

    Args:
        indices: of the GPUs, as NVML numbers them; empty: nothing is read.
        read: returns the reasons of a GPU.
    """

    def __init__(self, indices: Sequence[int], read: Callable[[int], tuple[str, ...]] = slowdowns) -> None:
        self._indices, self._read = tuple(indices), read
        self._readings, self._counts = 0, Counter[tuple[int, str]]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slowdown-watch", daemon=True)

    def __enter__(self) -> SlowdownWatch:
        if self._indices:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(_WATCH_S):
            self.look()

    def look(self) -> None:
        """Read each GPU once."""
        self._readings += 1
        self._counts.update((index, reason) for index in self._indices for reason in self._read(index))

    def warnings(self) -> list[str]:
        """Return a line for each GPU whose clocks were low in a notable share of the readings."""
        shares = {key: count / self._readings for key, count in sorted(self._counts.items())}
        return [
            f"warning: GPU {index} was slowed down by {reason} {share:.0%} of the time, so that figures vary; cool it"
            for (index, reason), share in shares.items()
            if share >= NOTABLE_SHARE
        ]


def load_warning(load: float | None = None, cores: int | None = None) -> str | None:
    """Return a warning if more processes want to run on this machine than it has cores; None if not.

    Args:
        load: mean number of processes that run or wait, of the last minute; None: of this machine.
        cores: of the whole machine, as the load is; None: of this machine.
    """
    cores = os.cpu_count() if cores is None else cores
    load = os.getloadavg()[0] if load is None else load
    if cores is None or load <= cores:
        return None
    return (
        f"warning: this machine is loaded (load average {load:.1f}, {cores} processors), so that figures vary; "
        "end other work first, or measure more rounds"
    )


def wait_until_free(
    index: int, below_gib: float, timeout_s: float, cancelled: CancelToken, nvml: Nvml | None = None
) -> GpuWait:
    """Wait at most `timeout_s` seconds until at most `below_gib` GiB are in use on GPU `index`; poll every 0.2 s.

    The wait ends without success at the deadline, when cancelled, and at once if the memory cannot be read.
    """
    begun = time.monotonic()
    while True:
        used = used_memory_gib(index, nvml)
        waited = time.monotonic() - begun
        free = used is not None and used <= below_gib
        if free or used is None or waited >= timeout_s or cancelled.wait(min(_POLL_S, timeout_s - waited)):
            return GpuWait(free, used)


def hardware_profile(index: int, nvml: Nvml | None = None) -> HardwareProfile | None:
    """Return the properties of GPU `index` that the search space uses; None if there is no such GPU.

    A known card's memory and bandwidth are those in `search_spaces`, unless the driver's memory differs by 6 % or more.
    An unknown card's bandwidth is bus width in bytes × memory clock × 2 (double data rate), None if not available.
    """
    nvml = nvml or _pynvml()
    device = next((device for device in devices(nvml, {}) if device.index == index), None)
    if nvml is None or device is None:
        return None
    known = _known(device.name)
    linked = known if "pcie" not in device.name.lower() else None  # the known A100 and H100 are on SXM boards
    total = device.memory_total_gib
    same_memory = known is not None and known.memory_gib is not None and abs(known.memory_gib / total - 1) < 0.06
    return HardwareProfile(
        name=device.name,
        key=known.key if known else _key(device.name),
        vendor="nvidia",
        compute_capability=device.compute_capability,
        memory_gib=known.memory_gib if known and same_memory else total,
        bandwidth_gbs=known.bandwidth_gbs if known else _bandwidth_gbs(nvml, index),
        tflops=known.tflops if known else {},
        launch_us=known.launch_us if known else None,
        host_speed=known.host_speed if known else None,
        link=linked.link if linked else None,
        link_gbs=linked.link_gbs if linked else None,
        multiprocessors=known.multiprocessors if known else None,
    )


def _known(name: str) -> HardwareProfile | None:
    try:
        return hardware_named(name)
    except SpaceError:
        return None


def _key(name: str) -> str:
    words = [word for word in name.lower().split() if word not in ("nvidia", "tesla", "geforce")]
    return "-".join(words) or "gpu"


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def host_limits() -> dict[str, Any]:
    """Return what a search space's context has of this host, by field; a server on another host may have less."""
    return {"cores": usable_cores(), "host_memory_gib": host_memory_gib(), "shm_gib": shm_gib()}


def host_memory_gib() -> float:
    """Return the memory of this host that its processes may use: all of it, or the limit of the control group."""
    limits = [psutil.virtual_memory().total]
    with contextlib.suppress(OSError, ValueError):
        limits.append(int(_CGROUP_LIMIT.read_text()))  # the text is "max" without a limit
    return round(min(limits) / GIB, 2)


def shm_gib() -> float | None:
    """Return the size of `/dev/shm`, which the processes of a server share; None if there is none."""
    try:
        return round(shutil.disk_usage(_SHARED_MEMORY).total / GIB, 2)
    except OSError:
        return None


def host_facts() -> dict[str, JsonScalar]:
    """Return CPU, memory in GiB and platform of this host, for a study's provenance; None where unknown."""
    return {
        "cpu": _cpu_model(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores": psutil.cpu_count(),
        "cores_usable": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 2),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
    }


def _device(nvml: Nvml, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Device(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        compute_capability=(major, minor),
        memory_total_gib=memory.total / GIB,
        driver=nvml.nvmlSystemGetDriverVersion(),
    )


def _visible(found: list[Device], visible: str) -> list[Device]:
    chosen: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            matches = [device for device in found if device.index == int(entry)]
        else:
            matches = [device for device in found if entry.startswith("GPU-") and device.uuid.startswith(entry)]
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen.append(matches[0])
    return chosen


def _bandwidth_gbs(nvml: Nvml, index: int) -> float | None:
    memory_clock = 2  # NVML_CLOCK_MEM
    bits = _read(index, nvml, lambda nvml, handle: nvml.nvmlDeviceGetMemoryBusWidth(handle))
    megahertz = _read(index, nvml, lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, memory_clock))
    return (bits or 0) / 8 * (megahertz or 0) * 2 / 1000 or None


def _cpu_model() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith(("model name", "Model"))]
    except OSError:
        return None
    return lines[0].partition(":")[2].strip() if lines else None
