"""Bring the files of a trial from a node that does not share the study's folder.

The driver writes a marker into the trial's folder before it submits the trial. A worker that does not find the marker
works in a temporary folder of its own and returns the files as an archive.
"""

from __future__ import annotations

import io
import logging
import shutil
import tarfile
from pathlib import Path

MARKER = ".driver"
MAX_BYTES = 256 * 1024 * 1024
"""Size of the files of one trial that are carried, before compression."""
LEFT_OUT = "left_on_node.txt"
"""A list of the files that were too large."""

_log = logging.getLogger(__name__)


def mark(folder: Path) -> None:
    """Write the marker into a trial's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()


def unmark(folder: Path) -> None:
    """Remove the marker."""
    (folder / MARKER).unlink(missing_ok=True)


def is_shared(folder: Path) -> bool:
    """Return whether a worker uses the folder that the driver marked."""
    return (folder / MARKER).exists()


def pack(folder: Path, host: str) -> bytes:
    """Return the files of a folder as a compressed archive, the smallest first, of at most `MAX_BYTES` in all.

    Links are left out.
    """
    regular = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    files = sorted((path.stat().st_size, path) for path in regular)
    buffer, total, left_out = io.BytesIO(), 0, []
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for size, path in files:
            name = path.relative_to(folder).as_posix()
            total += size
            if total > MAX_BYTES:
                left_out.append(f"{name}: {size} bytes, removed from {host}\n")
                continue
            archive.add(path, arcname=name)
        if left_out:
            text = "".join(left_out).encode()
            entry = tarfile.TarInfo(LEFT_OUT)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


def bring_back(archive: bytes | None, folder: Path) -> None:
    """Write the files of an archive, if there is one; a failure is logged, and the trial's outcome counts."""
    if archive is None:
        return
    try:
        unpack(archive, folder)
    except (OSError, tarfile.TarError) as error:
        _log.warning("the files of a trial cannot be written to %s: %s", folder, error)


def unpack(archive: bytes, folder: Path) -> None:
    """Write the files of an archive into a trial's folder.

    Raises:
        OSError: if they cannot be written.
        tarfile.TarError: for a name that leads out of the folder, a link, a device, or data that is no archive.
    """
    root = folder.resolve()
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
        for entry in files:  # the filters of `extractall` are in 3.11.4, and Debian 12 has 3.11.2
            path = (root / entry.name).resolve()
            content = files.extractfile(entry) if entry.isfile() and path.is_relative_to(root) else None
            if content is None:
                raise tarfile.TarError(f"{entry.name!r} is no file of this folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            with content, path.open("wb") as file:
                shutil.copyfileobj(content, file)
