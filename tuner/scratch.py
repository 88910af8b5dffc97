"""Temporary folders, named `tuner-KIND-PID-…` so that those of a killed process are found and removed later."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "tuner-"


def new_folder(kind: str) -> Path:
    """Make a temporary folder of this process, after the removal of folders whose owners have ended.

    Its path is short enough for Unix sockets.
    """
    remove_stale()
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-{os.getpid()}-"))


def empty(folder: Path) -> None:
    """Remove the contents of a folder; entries that cannot be removed stay."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def remove_stale() -> None:
    """Remove the folders whose processes no longer run on this host."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*-*"):
        owner = folder.name.split("-")[2]
        if owner.isdecimal() and not _runs(int(owner)):
            remove(folder)


def _runs(pid: int) -> bool:
    """Return whether a process has the id and is no zombie, which has no working folder."""
    try:
        os.readlink(f"/proc/{pid}/cwd")
    except PermissionError:  # another user's process
        return True
    except OSError:
        return False
    return True
