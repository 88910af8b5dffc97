"""Write the bundle of a study: one ZIP archive to attach to an issue.

A ZIP file opens by a double click on every system, lists its files without being unpacked, and is a type that issue
trackers accept. Its times are fixed, so the same study gives the same bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dashboards.analysis.trials_frame import to_csv, trials_frame
from dashboards.plots.interactive.embedded import plotly_script
from dashboards.report.page import render
from storage import open_store
from storage.records import StudyRecord, TrialRecord
from tuner.errors import SettingError, UserError
from tuner.export.from_study import serve_script_of
from tuner.export.render import render_serve_script
from tuner.files import write_output
from tuner.owner import refuse_other_file
from tuner.use_cases.bundle.anonymous import anonymous, private_texts
from tuner.use_cases.bundle.private_texts import PrivateTexts
from tuner.use_cases.files.export import exported_of
from tuner.use_cases.places import storage_url
from tuner.use_cases.report.page import page_of
from tuner.use_cases.report.reported import ReportedStudy
from tuner.use_cases.report.write import named_study

SUFFIX = ".zip"
FIRST = "README.txt"
"""The first member, which is not compressed, so that `tuner.owner` finds the study's name."""
_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a ZIP archive can hold."""

README = """\
{kind} figures of the study {name}, written by `tuner report` for people who were not there.

report.html      the result, the search and the load, with where every number comes from; open it in a browser
trials.csv       one row for each trial and measurement, as `tuner trials` writes it: the columns of
                 dashboards.analysis.trials_frame
conclusion.json  what the study decided, with intervals; null if it has not ended
hardware.json    card, driver, engine, tuner, Python and system, as the study recorded them; null: not recorded
{more}
Left out: values of secrets, variables of the environment, folders of paths, names of users and hosts, and the contents
of your files. The names of the study and of a model on a hub are here. Look through the files before you pass them on.
"""


def write_bundle(
    studies: Sequence[str], output: Path | None, environment: Mapping[str, str], storage: str | None
) -> Path:
    """Write the bundle of a study.

    Args:
        studies: the name of the study; empty: the latest of the database.
        output: the archive; None: `NAME-bundle.zip` in the current folder.
        environment: the variables of this process, whose secrets may not be in the archive.
        storage: file or SQLAlchemy URL of the database; None: the default one.

    Returns:
        The path of the archive.

    Raises:
        UserError: for several studies, when there is no such study, it has no finished trial, the path has another
            file, or the archive cannot be written.
    """
    if len(set(studies)) > 1:
        raise UserError(f"a bundle has one study, not {len(set(studies))}; write one for each")
    if output is not None and output.suffix not in (SUFFIX, ""):
        raise SettingError("output", str(output), "a bundle is a ZIP archive", f"give a name that ends in {SUFFIX}")
    url = storage_url(storage, create=False)
    with closing(open_store(url)) as store:
        study = named_study(store, url, next(iter(studies), None))
    texts = private_texts(study, environment)
    shown = anonymous(study, texts)
    path = Path(f"{shown.record.name}-bundle{SUFFIX}") if output is None else output
    refuse_other_file(path, shown.record.name)
    try:
        write_output(path, archive(members(shown, texts)))
    except OSError as error:
        rule = f"the file cannot be written: {error.strerror}"
        raise SettingError("output", str(path), rule, "choose another file") from None
    return path


def members(study: ReportedStudy, texts: PrivateTexts) -> dict[str, str]:
    """Return the files of a bundle by name.

    Args:
        study: of clean records.
        texts: what no file may contain; the script of Plotly, which is the same everywhere, is left as it is.
    """
    record = study.record
    found = {
        "report.html": render(page_of(study)),
        "trials.csv": to_csv(trials_frame(study.trials)),
        "conclusion.json": _json(record.conclusion),
        "hardware.json": _json(hardware(study)),
    }
    optional = {"best_serve.sh": _script(study), "failures.txt": failures(study.trials)}
    notes = {
        "best_serve.sh": "best_serve.sh    starts the server of the winner, or of the trial nearest to the SLOs",
        "failures.txt": "failures.txt     why trials failed, with the lines of the log that show the cause",
    }
    present = {name: text for name, text in optional.items() if text is not None}
    kind = "Simulated" if study.simulated else "Measured"
    more = "".join(f"{notes[name]}\n" for name in present)
    readme = README.format(kind=kind, name=record.name, more=more)
    script = plotly_script()
    return {
        name: script.join(map(texts.exact, text.split(script)))
        for name, text in {FIRST: readme, **found, **present}.items()
    }


def archive(files: Mapping[str, str]) -> bytes:
    """Return a ZIP archive of texts; the same texts give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_STORED if name == FIRST else zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, whose modes follow
            entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            packed.writestr(entry, text.encode("utf-8", errors="surrogateescape"))
    return buffer.getvalue()


def hardware(study: ReportedStudy) -> dict[str, Any]:
    """Return what the study recorded of its load, hardware and versions; None: not recorded, by an earlier version."""
    record, premise, facts = study.record, study.record.premise, study.record.facts
    devices = [*map(str, facts.get("devices", ()))]
    return {
        "study": record.name,
        "numbers": record.provenance.value,
        "began": record.created_at.isoformat(),
        "preset": facts.get("preset"),
        "model": premise["model"],
        "workload": premise["workload"],
        "objectives": premise["objectives"],
        "slos": premise["slos"],
        "server_arguments": premise["server"].get("arguments", []),
        "card": {name: devices.count(name) for name in devices} or None,
        "driver": facts.get("drivers"),
        "engine": {"name": premise["engine"]["name"], "version": premise["engine"]["version"]},
        "machines": facts.get("machines"),
    }


def failures(trials: Sequence[TrialRecord]) -> str | None:
    """Return why trials failed, each with its evidence; None if none did."""
    parts = []
    for trial in trials:
        failure = None if trial.outcome is None else trial.outcome.failure
        if failure is not None:
            ended = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
            kind, culprit = failure.kind.value, failure.culprit.value
            parts.append(f"{trial.name} {kind} ({culprit}), {failure.phase.value}{ended}")
            parts.append(f"  {failure.message}")
            parts += [f"  | {line}" for line in (failure.evidence or "").splitlines()]
    return "\n".join([*parts, ""]) if parts else None


def _script(study: ReportedStudy) -> str | None:
    """Return the script of the winner, which carries no file of the user; None if the study has none."""
    record: StudyRecord = study.record
    number = exported_of(record.conclusion)
    if number is None:
        return None
    try:
        return render_serve_script(serve_script_of(record, number, study.trials))
    except UserError:  # a winner without figures of its own
        return None


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=False) + "\n"
