"""Temporary folders that name their owner, so that what a killed process left is found and removed later."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "tuner-"


def new_folder(kind: str) -> Path:
    """Make a folder of this process, short enough to hold Unix sockets; first remove those whose owners are gone."""
    remove_stale(kind)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-{os.getpid()}-"))


def empty(folder: Path) -> None:
    """Remove what is in a folder; what cannot be removed stays."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove a folder and all in it."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_stale(kind: str) -> None:
    """Remove this kind's folders whose processes no longer run on this host."""
    prefix = f"{_PREFIX}{kind}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        owner = folder.name.removeprefix(prefix).split("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            remove(folder)
