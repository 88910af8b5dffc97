"""Write reports and deployment files from a server's answers to paths that the user chose."""

from __future__ import annotations

from pathlib import Path

from tuner.errors import SettingError, reason_of
from tuner.files import write_output
from tuner.owner import refuse_other_file

_PROGRAMS = ("script", "command")
"""Formats whose file is a program."""


def write_report(content: bytes, path: Path, study: str) -> Path:
    """Write a report of a study, or of several, and return its path.

    Raises:
        SettingError: if the path has another file, or it cannot be written.
    """
    refuse_other_file(path, study)
    _write(path, content)
    return path


def write_export(files: dict[str, str], path: Path, form: str, study: str) -> Path:
    """Write the files of a deployment format, the first one to `path` and others beside it; return the first.

    Raises:
        SettingError: if a path has another file, or one cannot be written.
    """
    targets = [path, *(path.with_name(Path(name).name) for name in [*files][1:])]
    for target in targets:
        refuse_other_file(target, study)
    for target, text in zip(targets, files.values(), strict=True):
        _write(target, text.encode(), mode=0o700 if form in _PROGRAMS and target is path else None)
    return path


def _write(path: Path, content: bytes, mode: int | None = None) -> None:
    try:
        write_output(path, content, mode=mode)
    except OSError as error:
        rule = f"the file cannot be written: {reason_of(error)}"
        raise SettingError("output", str(path), rule, "choose another file") from None
