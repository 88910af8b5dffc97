"""Keep the logs of servers and clients small: their beginning and their end, without secrets."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

KEPT_BYTES = 2**20
"""What stays of a log at each end once its process has ended."""

RUNNING_KEPT_BYTES = 2**24
"""What stays at each end while the process runs; failures are read from the first and the last 2 MB."""

_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01


def shorten_log(path: Path, redact: Callable[[bytes], bytes]) -> None:
    """Replace the log of a process that has ended by its beginning, its end and a line that says what was cut.

    A file that cannot be read or written stays as it is.

    Args:
        path: the log.
        redact: returns bytes without secrets.
    """
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_file():
            return
        old = path.stat().st_size
        text = _ends(path) if old > 2 * KEPT_BYTES else path.read_bytes()
        new = redact(text)
        if len(text) == old and new == text:
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(new)
            temporary.chmod(path.stat().st_mode & 0o777)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _ends(path: Path) -> bytes:
    """Return the whole lines at both ends of a long log, and between them how much was cut."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(KEPT_BYTES)
        file.seek(size - KEPT_BYTES)
        tail = file.read(KEPT_BYTES)
    head = head[: head.rfind(b"\n") + 1] or head + b"\n"
    tail = tail[tail.find(b"\n") + 1 :] or tail
    cut = size - len(head) - len(tail)
    return head + f"[tuner: {cut:,} bytes of this log were cut here]\n".encode() + tail


def free_middle(path: Path) -> None:
    """Return the disk space of a growing log's middle to the system; its length and both ends stay.

    The process appends to the file meanwhile. File systems that cannot do this leave the log as it is.
    """
    with contextlib.suppress(OSError, AttributeError):
        if path.stat().st_size <= 4 * RUNNING_KEPT_BYTES or path.stat().st_blocks * 512 <= 3 * RUNNING_KEPT_BYTES:
            return
        with path.open("r+b") as file:
            length = file.seek(0, os.SEEK_END) - 2 * RUNNING_KEPT_BYTES
            mode = ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE)
            start, count = ctypes.c_int64(RUNNING_KEPT_BYTES), ctypes.c_int64(length)
            ctypes.CDLL(None).fallocate64(ctypes.c_int(file.fileno()), mode, start, count)
