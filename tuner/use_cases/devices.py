"""The devices of a study: the GPUs of this machine or of a cluster, or the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces import HardwareProfile, hardware_named
from tuner.errors import SettingError, UserError


@dataclass(frozen=True)
class Devices:
    """The workers' devices: one name for each worker, all of the kind of `profile`."""

    names: tuple[str, ...]
    profile: HardwareProfile
    gpus: bool


def find_devices(workers: int | None, ray_address: str | None = None) -> Devices:
    """Return the devices of this machine, or of a cluster whose nodes have the same GPUs.

    Args:
        workers: how many; None: one for each GPU, or one on the CPU.
        ray_address: address of the cluster; None: this machine.

    Raises:
        UserError: for less than one worker or more workers than GPUs, or a GPU that does not answer.
    """
    from tuner import gpu

    if workers is not None and workers < 1:
        raise SettingError("workers", workers, "at least 1 is needed")
    devices = gpu.devices()
    if not devices:
        count = workers or 1
        return Devices(tuple("cpu" for _ in range(count)), hardware_named("cpu"), gpus=False)
    count = workers or len(devices)
    if count > len(devices) and ray_address is None:
        rule = f"this machine has {len(devices)} GPUs and each worker needs one"
        raise SettingError("workers", count, rule, "lower it, or leave it out")
    names = tuple(devices[0].name for _ in range(count))
    profile = gpu.hardware_profile(devices[0].index)
    if profile is None:
        raise UserError(f"GPU {devices[0].index} ({devices[0].name}) does not answer; see `nvidia-smi`")
    return Devices(names, profile, gpus=True)
