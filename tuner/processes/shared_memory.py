"""Remove the shared memory that killed processes leave behind.

vLLM's processes communicate through segments in /dev/shm (`psm_…`, 160–250 MB each) and semaphores (`sem.mp-…`) of
Python's `multiprocessing`, which removes them at a regular exit but not after SIGKILL. PyTorch (`torch_…`) and NCCL
(`nccl-…`) do the same. Other files there, such as a model's weights, are never removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

SHARED_MEMORY_FOLDER = Path("/dev/shm")
_PREFIXES = tuple(f"{SHARED_MEMORY_FOLDER}/{prefix}" for prefix in ("psm_", "sem.mp-", "torch_", "nccl-"))


def mapped_segments(pids: Iterable[int]) -> set[Path]:
    """Return the segments and semaphores that these processes have mapped."""
    segments: set[Path] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                path = "/" + line.partition("/")[2]
                if path.startswith(_PREFIXES) and not path.endswith(" (deleted)"):
                    segments.add(Path(path))
    return segments


def remove_unused(segments: Iterable[Path]) -> None:
    """Remove those of the segments that exist and that no process has mapped."""
    left = {segment for segment in segments if segment.exists()}
    if not left:
        return
    left -= mapped_segments(int(name) for name in os.listdir("/proc") if name.isdigit())
    for segment in left:
        with contextlib.suppress(OSError):
            segment.unlink()
