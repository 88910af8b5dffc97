"""The GPUs of a worker: which they are, when they are free, and what servers and clients see of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from records.trials import FailureKind, Phase
from tuner import gpu
from tuner.cancellation import CancelToken
from tuner.errors import trial_failed

SPARE_GIB = 0.5
GPU_FREE_S = 120.0
"""How long a launch waits for the memory of the last server to become free."""


@dataclass(frozen=True)
class WorkerDevice:
    """A GPU of the worker: NVML's index, and the memory in use before the study's first server."""

    index: int
    baseline_gib: float | None

    def wait_until_free(self, limit_s: float, cancelled: CancelToken) -> gpu.GpuWait | None:
        """Wait until about as little memory is in use as before the study; return None if that is not known."""
        if self.baseline_gib is None:
            return None
        return gpu.wait_until_free(self.index, self.baseline_gib + SPARE_GIB, limit_s, cancelled)


def worker_devices(slot: int | None, gpus: int = 1) -> tuple[WorkerDevice, ...]:
    """Return the worker's GPUs: the `slot`-th group of the visible ones, or the first if only its own are visible.

    Args:
        slot: number of the worker; None: only its own GPUs are visible.
        gpus: of each worker.
    """
    visible = gpu.devices()
    first = (slot or 0) * gpus % max(len(visible), 1)
    chosen = [*visible[first:], *visible[:first]][:gpus]
    return tuple(WorkerDevice(each.index, gpu.used_memory_gib(each.index)) for each in chosen)


def wait_for_gpus(devices: Sequence[WorkerDevice]) -> None:
    """Wait until the GPUs have as little memory in use as before the study.

    Raises:
        TrialFailed: `GPU_BUSY`, if one has more after `GPU_FREE_S` seconds.
    """
    deadline = time.monotonic() + GPU_FREE_S
    for device in devices:
        wait = device.wait_until_free(max(deadline - time.monotonic(), 0.0), threading.Event())
        if wait is not None and not wait.free:
            used = "unknown" if wait.used_gib is None else f"{wait.used_gib:.1f} GiB"
            message = f"GPU {device.index} has {used} in use; before this study it was {device.baseline_gib:.1f} GiB"
            raise trial_failed(FailureKind.GPU_BUSY, Phase.LAUNCH, message)


DROPPED_PREFIXES = ("VLLM_", "RAY_", "PGPASS", "TUNER_WEBHOOK_")
"""Inherited variables with these prefixes are dropped: a trial must not depend on the shell that started the study,
and servers need neither the password of the tuner's database nor the addresses of webhooks. `--env` sets them, and then
they are part of the study's premise."""


def base_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the inherited variables without those of `DROPPED_PREFIXES`."""
    return {name: value for name, value in inherited.items() if not name.startswith(DROPPED_PREFIXES)}


OWN_VARIABLES = frozenset(
    {
        "VLLM_HOST_IP",
        "VLLM_CACHE_ROOT",
        "VLLM_NO_USAGE_STATS",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TMPDIR",
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
    }
)
"""The variables that the tuner sets for every server. They belong to the trial, not to the configuration."""


def visible_gpus(indices: Sequence[int]) -> dict[str, str]:
    """Return the variables that show a server these GPUs only, by NVML's indices; none on a machine without a GPU."""
    if not indices:
        return {}
    shown = ",".join(str(index) for index in indices)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": shown}
