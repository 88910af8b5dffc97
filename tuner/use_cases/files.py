"""The files of a study: its script and deployment files, what it leaves at its end, and copies of studies.

A copy of a study has neither Optuna's tables nor the files of trials.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import TypeAdapter

from records.measured import exported_of
from records.trials import FailedAttempt, Provenance, StudyRecord, TrialOutcome, TrialRecord
from storage import normalise_url, open_store
from storage.errors import StorageError
from storage.store import Store
from tuner.client.client import Client
from tuner.errors import SettingError, UserError, see_trials
from tuner.export.formats.registry import SCRIPT, default_file, format_named, write_deployment
from tuner.export.from_study import deployment_of
from tuner.export.render import write_serve_script
from tuner.extras import missing
from tuner.owner import free_path, other_file, refuse_other_file, refused_if_unwritable
from tuner.settings.study import SCRIPT_FILE
from tuner.study.run import RunResult
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
            raise SettingError("trial", None, rule, f"give {{trial}} N, {see_trials(record.name)}")
        if chosen is None:
            return (write_script(store, record, number, path),)
        deployment = deployment_of(record, number, store.trials(record.name))
    with refused_if_unwritable(path):
        return write_deployment(chosen, deployment, path, lambda target: refuse_other_file(target, record.name))


def write_script(store: Store, study: StudyRecord, number: int, output: Path) -> Path:
    """Write the script of a trial and return its path.

    Raises:
        UserError: when there is no such trial, it has no figures, the path has another file, or the file cannot be
            written.
    """
    refuse_other_file(output, study.name)
    script = deployment_of(study, number, store.trials(study.name), _own_program())
    with refused_if_unwritable(output):
        write_serve_script(script, output)
    return output


def _own_program() -> str | None:
    """Return the path of this tuner's command; None if it is not installed beside this Python."""
    program = Path(sys.executable).with_name("tuner")
    return os.fspath(program) if os.access(program, os.X_OK) else None


REPORT = "report.html"


def write_files(
    result: RunResult,
    name: str,
    store: Store,
    url: str,
    output: Path,
    artifacts: Path,
    note: Callable[[str], None],
) -> tuple[Path | None, Path | None]:
    """Write the script of the winner, or of the trial that is nearest to the SLOs, and the report; store their paths.

    Args:
        result: of the run.
        name: of the study.
        store: with its trials.
        url: of the database.
        output: the script; where it is another file, the script goes beside it.
        artifacts: folder of the study, in which the report is written.
        note: receives one line if the script goes elsewhere, or the report cannot be written, which ends no study.

    Returns:
        The paths of both; None for one that was not written.

    Raises:
        UserError: if the script cannot be written.
    """
    script = _script(result, name, store, output, note)
    report = None if result.conclusion is None else _report(name, store, url, artifacts / REPORT, note)
    return script, report


def _script(result: RunResult, name: str, store: Store, output: Path, note: Callable[[str], None]) -> Path | None:
    number = None if result.conclusion is None else result.conclusion.exported
    if number is None:
        return None
    study = store.study(name)
    assert study is not None
    path = free_path(output, name)
    if (found := other_file(output, name)) is not None:
        note(f"{output} is {found} and stays; the script of this study is {path}")
    write_script(store, study, number, path)
    store.update_study(name, facts={"script": os.fspath(path.resolve())})
    return path


def _report(name: str, store: Store, url: str, path: Path, note: Callable[[str], None]) -> Path | None:
    # Plotly and Jinja take a second to import, which no start of a study should wait for.
    try:
        from tuner.use_cases.report import charts, page
    except ModuleNotFoundError as error:
        if (lacking := missing(error)) is None:
            raise
        note(f"the report was not written: {lacking}; then `tuner study report {shlex.quote(name)}`")
        return None
    try:
        study = page.reported_study(store, url, name)
        store.update_study(name, facts=charts.plotted_facts(study))
        page.write_page(page.page_of(study), path, mode=0o600)
    except (UserError, StorageError, ArithmeticError, LookupError, ValueError) as error:
        again = f"`tuner study report {shlex.quote(name)}` tries again"
        note(f"the report was not written: {type(error).__name__}: {error}; {again}")
        return None
    store.update_study(name, facts={"report": os.fspath(path.resolve())})
    return path


MINIMUM_FREE_BYTES = 500 * 1024 * 1024


def check_disk(folder: Path) -> None:
    """Refuse a folder that is not writable, or whose disk is too full for logs and results.

    Raises:
        UserError: with the folder and what is free.
    """
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(existing).free
    if free < MINIMUM_FREE_BYTES:
        raise UserError(
            f"{existing} has {free / 2**20:.0f} MiB free and a study needs {MINIMUM_FREE_BYTES / 2**20:.0f}; "
            "free some, or work in another folder"
        )
    if not os.access(existing, os.W_OK):
        remedy = "work in another folder, or give {storage}"
        raise SettingError("storage", None, f"{existing} is not writable", remedy)


def check_output(output: Path, study: str) -> None:
    """Refuse a path at which the script of a study cannot be written, or that the user chose and has another file.

    Raises:
        SettingError: with the path.
    """
    folder = output.absolute().parent
    if output.is_dir() or not folder.is_dir():
        rule = "this is a folder" if output.is_dir() else f"there is no folder {folder}"
        raise SettingError("output", str(output), rule, "give a file in a folder that exists")
    written = output if output.exists() and not output.is_file() else folder  # a device or a FIFO is written through
    if not os.access(written, os.W_OK):
        raise SettingError("output", str(output), f"{written} is not writable", "choose another file")
    if output != Path(SCRIPT_FILE):
        refuse_other_file(output, study)


@functools.cache
def _adapters() -> Mapping[str, TypeAdapter[Any]]:
    """Return what a line may hold. An attempt is before its trial, which cannot be changed once it has its outcome."""
    kinds = {"study": StudyRecord, "attempt": FailedAttempt, "trial": TrialRecord}
    return {name: TypeAdapter(kind) for name, kind in kinds.items()}


def study_lines(store: Store, name: str) -> Iterator[str]:
    """Yield the lines of a study: the study, its trials, and each failed attempt before its trial.

    Raises:
        StorageError: if there is no such study.
    """
    record, trials = store.study(name), store.trials(name)
    yield _line("study", record)
    attempts = store.failed_attempts(name)
    for trial in trials:
        for attempt in attempts:
            if (attempt.number, attempt.round) == (trial.number, trial.round):
                yield _line("attempt", attempt)
        yield _line("trial", trial)


def _line(kind: str, value: object) -> str:
    return json.dumps({kind: _adapters()[kind].dump_python(value, mode="json")})


def add_study(store: Store, lines: Iterable[Mapping[str, Any]]) -> None:
    """Store a study that another database has.

    Args:
        store: it lacks the study.
        lines: what `study_lines` yielded, as JSON values.

    Raises:
        StorageError: if the database has the study.
    """
    attempts: list[FailedAttempt] = []
    provenance = Provenance.MEASURED
    for line in lines:
        for kind, body in line.items():
            value = _adapters()[kind].validate_python(body)
            if isinstance(value, StudyRecord):
                store.create_study(value)
                provenance = value.provenance
            elif isinstance(value, FailedAttempt):
                attempts.append(value)
            else:
                _add_trial(store, value, attempts, provenance)
                attempts = []


def _add_trial(store: Store, trial: TrialRecord, attempts: list[FailedAttempt], provenance: Provenance) -> None:
    place = (trial.study, trial.number, trial.round)
    store.add_trial(replace(trial, outcome=None, verdict=None))
    for each in attempts:
        where = (each.started_at, each.ended_at, provenance, each.worker, each.device)
        failed = TrialOutcome(*where, each.timings, each.artifacts, failure=each.failure)
        store.record_failed_attempt(*place, each.attempt, failed)
    if trial.outcome is not None:
        store.finish_trial(*place, trial.outcome, trial.verdict)


@contextmanager
def copied(client: Client, names: Sequence[str | None] | None) -> Iterator[str]:
    """Copy studies of a server into a temporary database, and return its URL.

    Args:
        client: of the server.
        names: of the studies, None among them for the latest one; None: all that have begun.
    """
    ids = [study.id for study in _begun(client)] if names is None else [name or latest(client) for name in names]
    found = [client.records(id) for id in dict.fromkeys(ids)]
    found.sort(key=lambda lines: datetime.fromisoformat(lines[0]["study"]["created_at"]))
    with TemporaryDirectory(prefix="tuner-server-") as folder:
        url = normalise_url(str(Path(folder) / "studies.db"))
        with closing(open_store(url)) as store:
            for lines in found:
                add_study(store, lines)
        yield url


def _begun(client: Client) -> list[Any]:
    """Return the studies that have begun, the one that was submitted last first."""
    found = [study for study in client.studies() if study.progress is not None]
    if not found:
        raise UserError(f"no study that you may read has begun on {client.server}; see `tuner service list`")
    return found


def latest(client: Client) -> str:
    """Return the id of the study that was submitted last, of those that have begun."""
    return next((study.id for study in client.studies() if study.progress is not None), None) or _begun(client)[0].id
