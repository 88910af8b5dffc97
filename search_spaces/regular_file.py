"""Read a file from outside: only a regular one, and only up to a size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    A FIFO without a writer would block the reader, and a device such as `/dev/zero` has no end.

    Raises:
        OSError: if there is no such file, if it is a folder, FIFO, device or socket, or if it is larger.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a null character in the path", str(path))
    if not stat.S_ISREG(path.stat().st_mode):  # to open a device may have an effect
        raise _not_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_regular(path)
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {_size(limit)}", str(path))
    return content


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", str(path))


def _size(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit >> 10} KiB"
