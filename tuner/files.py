"""The tuner's folder, and how files are written: content is replaced in one step, a device or FIFO is written through.

Files of a study are for its user only: a process of the tuner has the umask 077. Files that a user asks for at a path,
and those of the programs that a study starts, get the umask that the user gave (docs/reliability.md).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

PRIVATE = 0o077
HOME = "TUNER_HOME"
"""The environment variable with the folder of caches and records."""
UMASK = "TUNER_UMASK"
"""The environment variable with the umask that the user gave to the first process of the tuner, in octal digits."""


def be_private() -> None:
    """Let this process, and those that it starts, make files and folders for their user only."""
    given = os.umask(PRIVATE)
    os.environ.setdefault(UMASK, f"{given:o}")


def home() -> Path:
    """Return the folder of caches and of the records of started processes: TUNER_HOME, or ~/.cache/tuner."""
    given = os.environ.get(HOME)
    return Path(os.path.expanduser(given)) if given else Path.home() / ".cache" / "tuner"


def given_umask() -> int:
    """Return the umask that the user gave; -1 in a process that has it anyway, which is a user's own program."""
    try:
        return int(os.environ[UMASK], 8) & 0o777
    except (KeyError, ValueError):
        return -1


def write_atomically(path: Path, text: str | bytes, *, mode: int | None = None, errors: str = "strict") -> None:
    """Write `text` to `path`, in UTF-8 unless it is bytes, so that a reader sees the old content or all of the new.

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
    content = _bytes(text, errors)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_output(path: Path, text: str | bytes, *, mode: int | None = None, errors: str = "strict") -> None:
    """Write `text` to a path that the user chose.

    A regular file or a new one is replaced as `write_atomically` does; a link keeps pointing to it. A device or a FIFO
    is written through and stays what it is, without the permission bits.

    Args:
        path: the file; its folder must exist.
        text: the whole content.
        mode: permission bits of the file; None: read and write, as the umask allows that the user gave.
        errors: see `write_atomically`.

    Raises:
        OSError: if it cannot be written, or is a folder or a socket.
    """
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    if mode is None and (umask := given_umask()) >= 0:
        mode = 0o666 & ~umask
    if stat.S_ISREG(kind):
        write_atomically(path.resolve(), text, mode=mode, errors=errors)
        return
    path.write_bytes(_bytes(text, errors))


def _bytes(text: str | bytes, errors: str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", errors=errors)


def _sync_folder(folder: Path) -> None:
    """Write the folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
