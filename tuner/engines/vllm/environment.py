"""The environment of a server and of the benchmark client, stated in full."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path

DROPPED = ("VLLM_", "RAY_")
"""Inherited variables with these beginnings are left out: a trial must not depend on what happens to be set. A user who
wants one says so (`--env`), and then it is in the study's premise."""


def base_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the inherited variables that a vLLM process may see."""
    return {name: value for name, value in inherited.items() if not name.startswith(DROPPED)}


def keep_compiler_headers(scratch: Path, home: Path) -> None:
    """Link the folder of precompiled C++ headers out of the temporary files, so that they outlive a trial.

    PyTorch puts them into TMPDIR whatever its cache variables say (`torch/_inductor/codecache.py`, `_HEADER_DIR`), and
    compiling them costs each compiled start 3–8 s on two cores.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid_{os.getuid()}"
    name = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    kept = home / "vllm" / "inductor-temporary"
    kept.mkdir(parents=True, exist_ok=True)
    link = scratch / name
    if not link.is_symlink():
        link.symlink_to(kept, target_is_directory=True)


OWN_NAMES = frozenset(
    {
        "VLLM_CACHE_ROOT",
        "VLLM_NO_USAGE_STATS",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TMPDIR",
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
    }
)
"""What `own_environment` sets: a trial's matter, nothing that belongs to a configuration."""


def own_environment(home: Path, device: int | None, scratch: Path | None = None) -> dict[str, str]:
    """Return what the tuner sets for every server: one compile cache for all trials, no usage report, one GPU.

    Args:
        home: the tuner's folder.
        device: NVML's index of the GPU; None on a machine without.
        scratch: for vLLM's temporary files, which it leaves behind; the compilers' caches are then kept elsewhere.
    """
    variables = {"VLLM_CACHE_ROOT": str(home / "vllm" / "cache"), "VLLM_NO_USAGE_STATS": "1"}
    if scratch is not None:
        caches = {"TORCHINDUCTOR_CACHE_DIR": home / "vllm" / "inductor", "TRITON_CACHE_DIR": home / "vllm" / "triton"}
        variables |= {name: str(folder) for name, folder in caches.items()} | {"TMPDIR": str(scratch)}
    if device is not None:
        variables |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(device)}
    return variables
