"""Which devices a study runs on: the GPUs of this machine, a cluster's, or the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces import HardwareProfile, hardware_named
from tuner.errors import UserError


@dataclass(frozen=True)
class Devices:
    """The workers' devices: one name a worker, all of the kind of `profile`."""

    names: tuple[str, ...]
    profile: HardwareProfile
    gpus: bool


def find_devices(workers: int | None, ray_address: str | None = None) -> Devices:
    """Return the devices of this machine, or of a cluster's nodes that are like it, limited to `workers`.

    Raises:
        UserError: when more workers are asked for than there are GPUs, or none.
    """
    from tuner import gpu

    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}: at least 1 is needed")
    found = gpu.devices()
    if not found:
        count = workers or 1
        return Devices(tuple("cpu" for _ in range(count)), hardware_named("cpu"), gpus=False)
    count = workers or len(found)
    if count > len(found) and ray_address is None:
        raise UserError(f"--workers {count}: this machine has {len(found)} GPUs and each worker needs one")
    names = tuple(found[0].name for _ in range(count))
    profile = gpu.hardware_profile(found[0].index)
    if profile is None:
        raise UserError(f"GPU {found[0].index} ({found[0].name}) does not answer; see `nvidia-smi`")
    return Devices(names, profile, gpus=True)
