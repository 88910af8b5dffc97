"""The variables that vLLM's servers and clients get beside those of every server."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tuner.engines.server.environment import visible_gpus


def preserve_compiler_headers(scratch: Path, home: Path) -> None:
    """Link the folder of precompiled C++ headers from the temporary files to `home`, so that they outlive a trial.

    PyTorch puts them into TMPDIR regardless of its cache variables (`torch/_inductor/codecache.py`, `_HEADER_DIR`).
    Compiling them takes each compiled start 3–8 s on two cores.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid_{os.getuid()}"
    name = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    permanent = home / "vllm" / "inductor-temporary"
    permanent.mkdir(parents=True, exist_ok=True)
    link = scratch / name
    if not link.is_symlink():
        link.symlink_to(permanent, target_is_directory=True)


HOST_IP = "VLLM_HOST_IP"
"""The variable with the address at which other nodes reach a rank of a server."""


def own_environment(home: Path, gpus: Sequence[int] = (), scratch: Path | None = None) -> dict[str, str]:
    """Return the variables that the tuner sets for every server: a shared compile cache, no usage report, its GPUs.

    Args:
        home: the tuner's folder.
        gpus: NVML's indices of the worker's GPUs; empty on a machine without a GPU.
        scratch: a folder for the temporary files that vLLM leaves behind; the compilers' caches are then in `home`.
    """
    variables = {"VLLM_CACHE_ROOT": str(home / "vllm" / "cache"), "VLLM_NO_USAGE_STATS": "1"}
    if scratch is not None:
        caches = {"TORCHINDUCTOR_CACHE_DIR": home / "vllm" / "inductor", "TRITON_CACHE_DIR": home / "vllm" / "triton"}
        variables |= {name: str(folder) for name, folder in caches.items()} | {"TMPDIR": str(scratch)}
    return variables | visible_gpus(gpus)
