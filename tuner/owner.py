"""Whose file is at a path, so that a study replaces neither another study's file nor one of the user."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import SettingError, reason_of

_HEAD_BYTES = 8192
"""Every file that the tuner writes at a path of the user names its study within these first bytes."""

_STUDY = re.compile(
    r"^# study +(?P<export>.+), trial \d+$"  # `tuner.export.formats.document`
    r'|<meta name="tuner-study" content="(?P<report>[^"]*)">'  # `dashboards/report/report.html.j2`
    r"|figures of the study (?P<bundle>.+), written by `tuner study report`",  # `tuner.use_cases.bundle`
    re.MULTILINE,
)


def other_file(path: Path, study: str) -> str | None:
    """Return what a file of a study must not replace: `a file of study 'a'`; None if the path is free or its own.

    A device, a FIFO and an empty file are free. The names of several studies are joined by `, `.
    """
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace")
    except OSError as error:
        return f"a file that cannot be read ({reason_of(error)})"
    found = _STUDY.search(head)
    if found is None or found.lastgroup is None:
        return "a file that the tuner did not write"
    name = html.unescape(found["report"]) if found.lastgroup == "report" else found[found.lastgroup]
    return None if name == study else f"a file of study {name!r}"


def refuse_other_file(path: Path, study: str) -> None:
    """Refuse a path at which there is another file.

    Raises:
        SettingError: with what is there.
    """
    if (found := other_file(path, study)) is not None:
        raise SettingError("output", str(path), f"there is {found}, which stays", "choose another file, or remove it")


@contextmanager
def refused_if_unwritable(path: Path) -> Iterator[None]:
    """Turn an error of the file system into a refusal of the path.

    Raises:
        SettingError: with the path and the reason.
    """
    try:
        yield
    except OSError as error:
        rule = f"the file cannot be written: {reason_of(error)}"
        raise SettingError("output", str(path), rule, "choose another file") from None


def free_path(path: Path, study: str) -> Path:
    """Return the path, or one beside it that has the study's name: `best_serve-NAME.sh`."""
    endings = itertools.chain(["", f"-{study}"], (f"-{study}-{number}" for number in itertools.count(2)))
    candidates = (path.with_name(f"{path.stem}{ending}{path.suffix}") for ending in endings)
    return next(each for each in candidates if other_file(each, study) is None)
