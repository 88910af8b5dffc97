"""The use case of `tuner export`: a trial as a script that starts its server."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from storage import open_store
from storage.records import StudyRecord
from storage.store import Store
from tuner.errors import SettingError
from tuner.export.from_study import serve_script_of
from tuner.export.render import write_serve_script
from tuner.use_cases.places import find_study, storage_url


def export(study: str | None, trial: int | None, output: Path, storage: str | None = None) -> Path:
    """Write a trial of a study as a script.

    Args:
        study: name of the study; None: the latest of the database.
        trial: number of the trial; None: the winner.
        output: the script's path.
        storage: file or SQLAlchemy URL of the database; None: the default one.

    Raises:
        UserError: when there is no such study or trial, the trial has no figures, or the file cannot be written.
    """
    with closing(open_store(storage_url(storage, create=False))) as store:
        record = find_study(store, study)
        number = exported_of(record.conclusion) if trial is None else trial
        if number is None:
            rule = f"study {record.name!r} has no winner yet"
            raise SettingError("trial", None, rule, "give {trial} N, see `tuner trials`")
        return write_script(store, record, number, output)


def exported_of(conclusion: Mapping[str, Any] | None) -> int | None:
    """Return the number of the winner, else of the trial that is nearest to the SLOs; None without a conclusion."""
    found = conclusion or {}
    number = found.get("winner")
    return (found.get("nearest") or {}).get("number") if number is None else number


def write_script(store: Store, study: StudyRecord, number: int, output: Path) -> Path:
    """Write the script of a trial and return its path.

    Raises:
        UserError: when there is no such trial, it has no figures, or the file cannot be written.
    """
    script = serve_script_of(study, number, store.trials(study.name), _own_program())
    try:
        write_serve_script(script, output)
    except OSError as error:
        rule = f"the file cannot be written: {error.strerror}"
        raise SettingError("output", str(output), rule, "choose another file") from None
    return output


def _own_program() -> str | None:
    """Return the path of this tuner's command; None if it is not installed beside this Python."""
    program = Path(sys.executable).with_name("tuner")
    return os.fspath(program) if os.access(program, os.X_OK) else None
