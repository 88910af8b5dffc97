"""What one node of a cluster has: its GPUs, its vLLM, its memory and its disk; read on the node itself."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from search_spaces import HardwareProfile
from search_spaces.units import GIB
from tuner import __version__, gpu
from tuner.engines.vllm.installation import find_executable, version_of
from tuner.errors import UserError


@dataclass(frozen=True)
class NodeFacts:
    """The facts of one node.

    Args:
        host: its name.
        tuner: version of this project there.
        gpus: names of the GPUs that Ray has there.
        profile: of its first GPU; None without a GPU.
        vllm: path of its vLLM; None if it has none.
        vllm_version: None if it was not read or vLLM does not start.
        problem: why vLLM cannot be used; None if it can.
        memory_gib: memory of the host.
        free_gib: free disk space at the folder of caches.
        model_cache: folder of Hugging Face's cache; None if it does not exist.
        driver: version of its GPUs' driver; None without a GPU.
        clock_difference_s: its wall clock minus the driver's, less what the probe can have taken; None if not read.
    """

    host: str
    tuner: str
    gpus: tuple[str, ...]
    profile: HardwareProfile | None
    vllm: str | None
    vllm_version: str | None
    problem: str | None
    memory_gib: float
    free_gib: float
    model_cache: str | None
    driver: str | None = None
    clock_difference_s: float | None = None


def read_node_facts(vllm: str | None, home: Path, with_version: bool) -> NodeFacts:
    """Read the facts of the node that this runs on.

    Args:
        vllm: the given executable; None: the one that is found.
        home: folder of caches.
        with_version: whether to start vLLM to read its version, which takes seconds to minutes the first time.
    """
    import psutil

    executable = version = problem = None
    try:
        executable = os.fspath(find_executable(vllm))
        version = version_of(Path(executable), home) if with_version else None
    except UserError as error:
        problem = str(error)
    devices = gpu.devices()
    existing = next(parent for parent in (home, *home.parents) if parent.is_dir())
    cache = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    return NodeFacts(
        host=os.uname().nodename,
        tuner=__version__,
        gpus=tuple(device.name for device in devices),
        profile=gpu.hardware_profile(devices[0].index) if devices else None,
        vllm=executable,
        vllm_version=version,
        problem=problem,
        memory_gib=psutil.virtual_memory().total / GIB,
        free_gib=shutil.disk_usage(existing).free / GIB,
        model_cache=os.fspath(cache) if cache.is_dir() else None,
        driver=devices[0].driver if devices else None,
    )
