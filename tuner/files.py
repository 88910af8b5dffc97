"""Replace a file's content in one step."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str, *, mode: int | None = None, errors: str = "strict") -> None:
    """Write `text` to `path` in UTF-8 so that a reader sees the old content or all of the new.

    The text goes to a temporary file in the same folder, then to the disk, then replaces `path`. It survives a crash of
    the machine from the return on. If anything fails, `path` keeps its content and no temporary file remains.

    Args:
        path: the file; its folder must exist.
        text: the whole new content; line ends are kept as they are.
        mode: permission bits of the file; None: read and write, as the umask allows.
        errors: how characters that UTF-8 cannot encode are handled, as for `str.encode`.

    Raises:
        OSError: if the folder is missing or the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", errors=errors, newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Write the folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
