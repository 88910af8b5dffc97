"""The folders in which compilers keep kernels, whose growth shows that a server has compiled some.

A kernel that is compiled for the first requests is on disk for all later servers. Work that leaves nothing on disk is
the same for every server, and so does not distort a comparison.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_HOME = "HOME"
_FOLDERS = (
    ("VLLM_CACHE_ROOT", "", ".cache/vllm"),
    ("TRITON_CACHE_DIR", "", ".triton/cache"),
    ("TORCHINDUCTOR_CACHE_DIR", "", None),
    ("FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer", ".cache/flashinfer"),
    ("DG_JIT_CACHE_DIR", "", ".deep_gemm"),
    ("SGLANG_DG_CACHE_DIR", "", ".cache/deep_gemm"),
    ("TILELANG_CACHE_DIR", "", ".tilelang/cache"),
    ("TVM_FFI_CACHE_DIR", "", ".cache/tvm-ffi"),
    ("CUDA_CACHE_PATH", "", ".nv/ComputeCache"),
)
"""A variable, the folder below its value, and the folder below HOME without the variable."""


class CompileCaches:
    """Counts the files of the caches of a server with this environment.

    Servers that run at the same time share the caches: growth may come from another one.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folders = cache_folders(environment)
        self._files = 0

    def mark(self) -> None:
        """Note the files that there are."""
        self._files = self._count()

    def grew(self) -> bool:
        """Return whether there are more files than at the last mark."""
        return self._count() > self._files

    def _count(self) -> int:
        return sum(len(files) for folder in self._folders for _, _, files in os.walk(folder))


def cache_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders of the caches, whether or not they exist; none lies in another one."""
    home = environment.get(_HOME)
    found: set[Path] = set()
    for variable, below, default in _FOLDERS:
        if environment.get(variable):
            found.add(Path(environment[variable], below))
        elif home and default:
            found.add(Path(home, default))
    return tuple(sorted(each for each in found if not any(parent in found for parent in each.parents)))
