"""The files of this machine: the contents of those that settings name, and those that answers are written to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import SettingError, reason_of
from tuner.files import write_output
from tuner.owner import refuse_other_file, refused_if_unwritable
from tuner.processes.secrets import REFERENCE, is_secret_variable
from tuner.settings.study import LARGEST_CONTENT

_YAML = (".yaml", ".yml")


def new_id() -> str:
    return f"study-{secrets.token_hex(4)}"


def with_contents(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON, with the contents of the files that they name.

    Args:
        given: values by keyword. `workload`, `space` and `quality_task` may name files of this machine; the files that
            a traffic file or a search space refers to are sent, too.

    Raises:
        SettingError: for a file that cannot be sent, and for the value of a secret, which the server would store.
    """
    settings = {name: value for name, value in given.items() if value is not None}
    _check_secrets(settings)
    files: dict[str, str] = {}
    for name in ("workload", "space", "quality_task"):
        if name not in settings:
            continue
        value = settings[name]
        if name == "workload":
            paths = [value] if isinstance(value, str | os.PathLike) else value
            settings[name] = [_content(name, Path(path), files) for path in paths]
        elif _is_file(os.fspath(value)):
            settings[name] = _content(name, Path(value), files)
    if files:
        settings["files"] = files
    return {name: [*value] if isinstance(value, tuple) else value for name, value in settings.items()}


def _is_file(value: str) -> bool:
    """Return whether the value of a space or a quality task names a file: other values are names or contents."""
    if "\n" in value or value.startswith("lm-eval:"):
        return False
    return value.endswith((*_YAML, ".jsonl")) or os.sep in value or Path(value).is_file()


def _content(name: str, path: Path, files: dict[str, str]) -> str:
    """Return the content of a file, and add those of the files that it refers to."""
    text = _read(name, path)
    if path.suffix in _YAML or name == "workload":
        _add_references(name, path, text, files)
    return text if "\n" in text else f"{text}\n"  # without a line break it would be a name


def _add_references(name: str, path: Path, text: str, files: dict[str, str]) -> None:
    for other in _named_files(path, text):
        if not isinstance(other, str) or other in files:
            continue
        if Path(other).name != other:
            rule = f"it refers to {other!r}, and the server knows files without folders"
            raise SettingError(name, str(path), rule, "put that file beside it, and leave the folder out")
        files[other] = content = _read(name, path.with_name(other))
        if other.endswith(_YAML):
            _add_references(name, path.with_name(other), content, files)


def _named_files(path: Path, text: str) -> list[object]:
    from search_spaces.yaml_file import YamlError, named_files, parse_yaml

    try:
        return [name for _, name in named_files(parse_yaml(text.encode(), path).data)]
    except YamlError:
        return []  # the server says what is wrong


def _read(name: str, path: Path) -> str:
    from search_spaces.yaml_file import read_regular_file  # loads YAML, which the options of a command do not need

    try:
        return read_regular_file(path, LARGEST_CONTENT).decode()
    except UnicodeDecodeError:
        raise SettingError(name, str(path), "the file is not UTF-8 text", "give a text file") from None
    except OSError as error:
        raise SettingError(
            name, str(path), f"the file cannot be read: {reason_of(error)}", "give another one"
        ) from None


def _check_secrets(settings: Mapping[str, Any]) -> None:
    named = set(settings.get("secret", ()))
    for variable, value in settings.get("env", {}).items():
        if (is_secret_variable(variable) or variable in named) and not REFERENCE.search(str(value)):
            rule = "the server would store the value of this secret"
            remedy = f"give {variable}='${{NAME}}' with the name of a variable that the server's admin allows"
            raise SettingError("env", variable, rule, remedy)


_PROGRAMS = ("script", "command")
"""Formats whose file is a program."""


def write_report(content: bytes, path: Path, study: str) -> Path:
    """Write a report of a study, or of several, and return its path.

    Raises:
        SettingError: if the path has another file, or it cannot be written.
    """
    refuse_other_file(path, study)
    with refused_if_unwritable(path):
        write_output(path, content)
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
        with refused_if_unwritable(target):
            write_output(target, text, mode=0o700 if form in _PROGRAMS and target is path else None)
    return path
