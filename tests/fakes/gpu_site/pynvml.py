"""One H100 that is not there, for processes that find this module on `PYTHONPATH` in place of NVML's."""

from __future__ import annotations

from types import SimpleNamespace

NVML_CLOCK_MEM = 2


class NVMLError(Exception):
    """NVML's error; this GPU has none."""


def nvmlInit() -> None:
    """Do nothing."""


def nvmlSystemGetDriverVersion() -> str:
    return "580.00"


def nvmlDeviceGetCount() -> int:
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-{handle}"


def nvmlDeviceGetName(handle: int) -> str:
    return "NVIDIA H100 80GB HBM3"


def nvmlDeviceGetCudaComputeCapability(handle: int) -> tuple[int, int]:
    return 9, 0


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(total=80 * 2**30, used=0, free=80 * 2**30)


def __getattr__(name: str) -> object:
    """Return a function of NVML that this GPU does not have."""
    if not name.startswith("nvml"):
        raise AttributeError(name)

    def missing(*_: object) -> None:
        raise NVMLError(name)

    return missing
