"""The lock that keeps two processes from running one study at the same time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tuner.errors import SettingError

_LOCK = "running.lock"


def refuse_running(folder: Path, name: str) -> None:
    """Refuse a study that another process runs; creates nothing.

    Args:
        folder: the study's folder of artifacts.
        name: the study's name.

    Raises:
        SettingError: when another process runs it.
    """
    path = folder / _LOCK
    if path.exists():
        with path.open("r+") as file:
            _lock(file, name)


@contextmanager
def study_lock(folder: Path, name: str) -> Iterator[None]:
    """Hold the study for this process. The operating system releases the lock when the process ends.

    Raises:
        SettingError: when another process runs the study.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+") as file:
        _lock(file, name)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _lock(file: TextIO, name: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        rule = f"process {owner} is running this study"
        raise SettingError("study", name, rule, "wait for it, or choose another name") from None
