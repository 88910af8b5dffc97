"""The use case of `tuner export`: a trial as a script or another file that starts its server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from storage import open_store
from storage.records import StudyRecord
from storage.store import Store
from tuner.errors import SettingError
from tuner.export.formats.registry import SCRIPT, default_file, format_named, write_deployment
from tuner.export.from_study import deployment_of, serve_script_of
from tuner.export.render import write_serve_script
from tuner.owner import refuse_other_file
from tuner.use_cases.places import find_study, storage_url


def export(
    study: str | None,
    trial: int | None,
    output: Path | None,
    storage: str | None = None,
    form: str = SCRIPT,
) -> tuple[Path, ...]:
    """Write a trial of a study in a deployment format, and return the files, the chosen one first.

    Args:
        study: name of the study; None: the latest of the database.
        trial: number of the trial; None: the winner.
        output: the file; None: the one that the format has by default.
        storage: file or SQLAlchemy URL of the database; None: the default one.
        form: name of the format.

    Raises:
        UserError: when there is no such study, trial or format, the trial has no figures, the format cannot hold its
            server, the path has another file, or the file cannot be written.
    """
    chosen, path = format_named(form), default_file(form) if output is None else output
    with closing(open_store(storage_url(storage, create=False))) as store:
        record = find_study(store, study)
        number = exported_of(record.conclusion) if trial is None else trial
        if number is None:
            rule = f"study {record.name!r} has no winner yet"
            raise SettingError("trial", None, rule, "give {trial} N, see `tuner trials`")
        if chosen is None:
            return (write_script(store, record, number, path),)
        deployment = deployment_of(record, number, store.trials(record.name))
    with _refused_file(path):
        return write_deployment(chosen, deployment, path, lambda target: refuse_other_file(target, record.name))


@contextmanager
def _refused_file(path: Path) -> Iterator[None]:
    """Turn an error of the file system into one about the file."""
    try:
        yield
    except OSError as error:
        rule = f"the file cannot be written: {error.strerror}"
        raise SettingError("output", str(path), rule, "choose another file") from None


def exported_of(conclusion: Mapping[str, Any] | None) -> int | None:
    """Return the number of the winner, else of the trial that is nearest to the SLOs; None without a conclusion."""
    found = conclusion or {}
    number = found.get("winner")
    return (found.get("nearest") or {}).get("number") if number is None else number


def write_script(store: Store, study: StudyRecord, number: int, output: Path) -> Path:
    """Write the script of a trial and return its path.

    Raises:
        UserError: when there is no such trial, it has no figures, the path has another file, or the file cannot be
            written.
    """
    refuse_other_file(output, study.name)
    script = serve_script_of(study, number, store.trials(study.name), _own_program())
    with _refused_file(output):
        write_serve_script(script, output)
    return output


def _own_program() -> str | None:
    """Return the path of this tuner's command; None if it is not installed beside this Python."""
    program = Path(sys.executable).with_name("tuner")
    return os.fspath(program) if os.access(program, os.X_OK) else None
