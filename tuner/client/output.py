"""Write what a server answered to files that the user chose."""

from __future__ import annotations

from pathlib import Path

from tuner.errors import SettingError
from tuner.files import write_output

_PROGRAMS = ("script", "command")
"""Formats whose file is a program."""


def write_report(content: bytes, path: Path) -> Path:
    """Write a report and return its path.

    Raises:
        SettingError: if it cannot be written.
    """
    _write(path, content)
    return path


def write_export(files: dict[str, str], path: Path, form: str) -> Path:
    """Write the files of a deployment format, the first one to `path` and others beside it; return the first.

    Raises:
        SettingError: if one cannot be written.
    """
    for index, (name, text) in enumerate(files.items()):
        target = path if not index else path.with_name(Path(name).name)
        _write(target, text.encode(), mode=0o700 if form in _PROGRAMS and not index else None)
    return path


def _write(path: Path, content: bytes, mode: int | None = None) -> None:
    try:
        write_output(path, content, mode=mode)
    except OSError as error:
        rule = f"the file cannot be written: {error.strerror}"
        raise SettingError("output", str(path), rule, "choose another file") from None
