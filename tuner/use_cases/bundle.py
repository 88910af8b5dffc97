"""Bundles: a ZIP archive of a study to attach to an issue, and the check of one that somebody else wrote.

The user leaves out what is not passed on; secrets are masked, and no other text changes. A ZIP file opens by a double
click on every system, lists its files without being unpacked, and is a type that issue trackers accept. Its times are
fixed, so the same study gives the same bytes. The check unpacks nothing, limits sizes and names, and prints no control
character.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dashboards.frames import to_csv, trials_frame
from dashboards.report.page import render
from records.measured import exported_of
from records.trials import TrialRecord
from storage import open_store
from tuner.errors import SettingError, UserError, reason_of
from tuner.export.from_study import deployment_of
from tuner.export.render import render_serve_script
from tuner.export.words import texts_in
from tuner.files import write_output
from tuner.owner import refuse_other_file, refused_if_unwritable
from tuner.processes.secrets import (
    MASK,
    Secrets,
    is_secret_variable,
    mask_url_passwords,
    referenced,
    url_passwords,
)
from tuner.results.text import printable
from tuner.use_cases.places import storage_url
from tuner.use_cases.report.page import named_study, page_of
from tuner.use_cases.report.reported import ReportedStudy

SUFFIX = ".zip"
FIRST = "README.txt"
"""The first member, which is not compressed: `tuner.owner` reads the first bytes of the archive."""

OF_STUDY = "{kind} figures of the study {name}, written by `tuner study report`."
"""The first line of `README.txt`, by which `tuner.owner` finds the study."""

CONTENTS = {
    "report.html": "the result, the search and the load; the server's command, the host, and where numbers come from",
    "trials.csv": "one row for each trial and measurement; `worker` names hosts, `argv` commands with their paths",
    "conclusion.json": "what the study decided, with intervals; null if it has not ended",
    "hardware.json": "load, goals, card, driver, engine, and the machines; null where the study recorded none",
    "best_serve.sh": "the server's command and variables, without the contents of your files",
    "failures.txt": "why trials failed, with lines of logs: paths, hosts, whatever a server printed",
}
"""What is in each file; `README.txt` lists it."""

_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a ZIP archive can hold."""

_LEAST_SECRET = 8
"""Least length of a secret variable's value that is masked wherever it occurs; shorter ones occur by chance."""

_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{12,}|sk-[\w-]{16,}|gh[a-z]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{10,}|AKIA[0-9A-Z]{12,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
"""Tokens of Hugging Face, OpenAI, GitHub, GitLab, Slack and AWS, and JSON web tokens."""

_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE)
_NAMED = re.compile(
    r"(?P<name>[\w.-]{0,60}(?:key|token|password|passwd|secret|credential)s?)(?P<between>[\"']?(?:\s*[=:]\s*|\s+)[\"'\[(]*)"
    r"(?P<value>\$\{\w+\}|[^\s\"',;&)}\]]+)",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[\d.,]{1,7}|\$\{\w+\}|\*+|none|null|true|false", re.IGNORECASE)
"""Values that are no secret after a name such as `output_token:`: a short number, a reference, nothing."""


@dataclass(frozen=True)
class Bundle:
    """A written bundle: its path, and the manifest, a line for each file with what is in it."""

    path: Path
    manifest: tuple[str, ...]


def write_bundle(
    studies: Sequence[str],
    output: Path | None,
    environment: Mapping[str, str],
    storage: str | None,
    leave_out: Sequence[str] = (),
) -> Bundle:
    """Write the bundle of a study.

    Args:
        studies: the name of one study; empty: the latest of the database.
        output: the archive; None: `NAME-bundle.zip` in the current folder.
        environment: the variables of this process, whose secrets may not be in the archive.
        storage: file or SQLAlchemy URL of the database; None: the default one.
        leave_out: names of files, of columns of `trials.csv`, and of keys of the JSON files.

    Raises:
        UserError: for several studies, when there is no such study, it has no finished trial, the path has another
            file, the archive cannot be written, or nothing has a name of `leave_out`.
    """
    if len(set(studies)) > 1:
        raise UserError(f"a bundle has one study, not {len(set(studies))}; write one for each")
    if output is not None and output.suffix not in (SUFFIX, ""):
        raise SettingError("output", str(output), "a bundle is a ZIP archive", f"give a name that ends in {SUFFIX}")
    url = storage_url(storage, create=False)
    with closing(open_store(url)) as store:
        study = named_study(store, url, next(iter(studies), None))
    files = _files(_without_secrets(study, environment), leave_out)
    manifest = tuple(f"{name:<15}  {CONTENTS[name]}" for name in files)
    first_line = OF_STUDY.format(kind="Simulated" if study.simulated else "Measured", name=study.record.name)
    left_out = f"\nLeft out: {', '.join(leave_out)}.\n" if leave_out else ""
    readme = "\n".join([first_line, "", *manifest, left_out])
    path = Path(f"{study.record.name}-bundle{SUFFIX}") if output is None else output
    refuse_other_file(path, study.record.name)
    with refused_if_unwritable(path):
        write_output(path, archive({FIRST: readme, **files}))
    return Bundle(path, manifest)


def _files(study: ReportedStudy, leave_out: Sequence[str]) -> dict[str, str]:
    """Return the files of a bundle by name, without what is left out."""
    frame, conclusion, hardware = trials_frame(study.trials), study.record.conclusion, _hardware(study)
    known = {*CONTENTS, *map(str, frame.columns), *(conclusion or {}), *hardware}
    for name in leave_out:
        if name not in known:
            rule = "the bundle has no file, column of trials.csv or key of a JSON file of this name"
            raise SettingError("leave_out", name, rule, f"files: {', '.join(CONTENTS)}")
    texts = {
        "trials.csv": to_csv(frame.drop(columns=[name for name in frame.columns if name in leave_out])),
        "conclusion.json": _json(conclusion, leave_out),
        "hardware.json": _json(hardware, leave_out),
        "best_serve.sh": _script(study),
        "failures.txt": _failures(study.trials),
    }
    if "report.html" not in leave_out:  # it takes the longest
        texts = {"report.html": render(page_of(study)), **texts}
    return {name: text for name, text in texts.items() if text is not None and name not in leave_out}


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


def _hardware(study: ReportedStudy) -> dict[str, Any]:
    """Return what the study recorded of its load, hardware and versions; None: not recorded."""
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


def _failures(trials: Sequence[TrialRecord]) -> str | None:
    """Return why trials failed, each with its evidence; None if none did."""
    parts = []
    for trial in trials:
        failure = trial.failure
        if failure is not None:
            ended = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
            kind, culprit = failure.kind.value, failure.culprit.value
            parts.append(f"{trial.name} {kind} ({culprit}), {failure.phase.value}{ended}")
            parts.append(f"  {failure.message}")
            parts += [f"  | {line}" for line in (failure.evidence or "").splitlines()]
    return "\n".join([*parts, ""]) if parts else None


def _script(study: ReportedStudy) -> str | None:
    """Return the script of the winner without the contents of the user's files; None if the study has none."""
    number, record = exported_of(study.record.conclusion), study.record
    if number is None:
        return None
    try:
        script = deployment_of(record, number, study.trials)
    except UserError:  # a winner without figures of its own
        return None
    traffic = script.verification.traffic
    if traffic is not None:
        traffic = replace(traffic, files={}, sources={}, needed=record.premise.get("files", {}))
    return render_serve_script(replace(script, verification=replace(script.verification, traffic=traffic)))


def _json(value: Mapping[str, Any] | None, leave_out: Collection[str]) -> str:
    """Return a JSON object as a file's text, without the keys to leave out."""
    kept = None if value is None else {key: each for key, each in value.items() if key not in leave_out}
    return json.dumps(kept, indent=1, ensure_ascii=False) + "\n"


def _without_secrets(study: ReportedStudy, environment: Mapping[str, str]) -> ReportedStudy:
    """Return a study without secrets in its texts.

    A secret is known by its value, its form (`hf_…`), or the name before it (`API_KEY=…`). Values are passwords in
    URLs, and variables of this environment whose names say so or to which the study refers.
    """
    record = study.record
    needed = referenced(texts_in(record.premise.get("server", {})))
    values = {
        name: value
        for name, value in environment.items()
        if name in needed or (is_secret_variable(name) and len(value) >= _LEAST_SECRET)
    }
    for name, text in {**environment, "STORAGE": study.url or ""}.items():
        values |= {f"{name}_PASSWORD{place or ''}": each for place, each in enumerate(url_passwords(text))}
    secrets = Secrets(values)
    goals = {name: record.premise[name] for name in ("objectives", "slos")}  # they name metrics such as `…_token`
    premise = {**cleaned(record.premise, secrets), **goals}
    facts, conclusion = cleaned(record.facts, secrets), cleaned(record.conclusion, secrets)
    trials = tuple(_clean_trial(trial, secrets) for trial in study.trials)
    return replace(study, record=replace(record, premise=premise, facts=facts, conclusion=conclusion), trials=trials)


def _clean_trial(trial: TrialRecord, secrets: Secrets) -> TrialRecord:
    outcome = trial.outcome
    if outcome is not None:
        failure = outcome.failure
        if failure is not None:
            message, evidence = cleaned([failure.message, failure.evidence], secrets)
            failure = replace(failure, message=message, evidence=evidence)
        argv, environment = tuple(cleaned(outcome.argv, secrets)), cleaned(outcome.environment, secrets)
        outcome = replace(outcome, argv=argv, environment=environment, failure=failure)
    return replace(trial, label=cleaned(trial.label, secrets), config=cleaned(trial.config, secrets), outcome=outcome)


def cleaned(value: Any, secrets: Secrets) -> Any:
    """Return a JSON value without secrets in its texts; names of a mapping's members stay."""
    if isinstance(value, str):
        text = mask_url_passwords(_TOKEN.sub(MASK, secrets.redact(value)))
        return _NAMED.sub(_masked_value, _BEARER.sub(rf"\1 {MASK}", text))
    if isinstance(value, Mapping):
        return {key: cleaned(each, secrets) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(each, secrets) for each in value]
    return value


def _masked_value(match: re.Match[str]) -> str:
    """Return a name with `***` for its value; only a flag's value follows after a blank."""
    name, between, value = match["name"], match["between"], match["value"]
    spaced = not between.strip("\"' \t\n") and not name.startswith("--")
    words = name.lstrip("-").replace("-", "_").replace(".", "_")
    if spaced or _PLAIN.fullmatch(value) or not is_secret_variable(words):
        return match[0]
    return f"{name}{between}{MASK}"


_NEEDED = ("trials.csv", "conclusion.json", "hardware.json")
_COLUMNS = ("number", "round", "kind", "score")
"""Files of a bundle and columns of `trials.csv` that the gallery reads."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How `archive` compresses; a damaged member of another method fails in ways of its own."""

_MOST_BYTES = 64 * 2**20
"""Limit of a bundle's size once it is unpacked."""


def check_bundle(path: Path) -> list[str]:
    """Return lines about a bundle: card, engine, model, measurements, and the study's conclusion.

    Raises:
        SettingError: if the file cannot be read.
        UserError: if it is no bundle or too large, lacks a file or column, or its study is simulated or has not ended.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            files = _read(path, packed)
        rows = [*csv.DictReader(io.StringIO(files["trials.csv"]))]
        hardware, conclusion = _document(files, "hardware.json"), _document(files, "conclusion.json")
    except OSError as error:
        remedy = "give a bundle that `tuner study report` wrote"
        raise SettingError("check", str(path), f"the file cannot be read: {reason_of(error)}", remedy) from None
    except (EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: no bundle of `tuner study report` ({error}); write it again") from None
    return [printable(line) for line in _lines(path, hardware, conclusion, rows)]


def _read(path: Path, packed: zipfile.ZipFile) -> dict[str, str]:
    """Return the files that the gallery needs, by name."""
    names, members = packed.namelist(), packed.infolist()
    known = {FIRST, *CONTENTS}
    strange = [each.filename for each in members if each.filename not in known or each.compress_type not in _METHODS]
    if strange:
        raise UserError(f"{path}: {strange[0]!r} is no file of a bundle; write it again")
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} left out, and the gallery needs it; write it again with it")
    if sum(each.file_size for each in members) > _MOST_BYTES:
        raise UserError(f"{path}: more than {_MOST_BYTES >> 20} MiB; write it again with fewer files")
    return {name: packed.read(name).decode("utf-8") for name in _NEEDED}


def _document(files: Mapping[str, str], name: str) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for null."""
    found = json.loads(files[name])
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"{name} is no JSON object")
    return found or {}


def _lines(
    path: Path, hardware: Mapping[str, Any], conclusion: Mapping[str, Any], rows: list[dict[str, str]]
) -> Iterator[str]:
    if hardware.get("numbers") != "measured":
        raise UserError(f"{path}: its numbers are {hardware.get('numbers')!r}; the gallery has measured ones only")
    absent = [name for name in _COLUMNS if not rows or name not in rows[0]]
    if absent:
        raise UserError(f"{path}: trials.csv has no {', '.join(absent)}; write it again with these columns")
    if not conclusion.get("reason"):
        raise UserError(f"{path}: the study has not ended; continue it with its own command, then write it again")
    rounds = sum(row["kind"] == "confirm" for row in rows)
    given = (hardware.get(name) for name in ("card", "engine", "model"))
    card, engine, model = (each if isinstance(each, dict) else {} for each in given)
    yield f"card          {', '.join(f'{count} × {name}' for name, count in card.items()) or 'not recorded'}"
    yield f"engine        {engine.get('name')} {engine.get('version')}"
    yield f"model         {model.get('name')}"
    yield f"measurements  {len(rows) - rounds} of the search, {rounds} of the finals"
    yield f"conclusion    {conclusion['reason']}"
