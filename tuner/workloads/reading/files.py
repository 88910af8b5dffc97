"""Reads files that users write: YAML with a schema, and text files with one value per line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from search_spaces.regular_file import read_regular_file
from search_spaces.yaml_file import YamlError, read_yaml
from tuner.errors import UserError

TEXT_LIMIT = 2**30
"""The largest file of prompts, times or lengths, in bytes."""

LARGEST_LENGTH = 10**9
"""The most tokens of a prompt or an answer."""

MAX_REQUESTS = 10_000_000
"""The most requests of one run: the schedule and every prompt are in memory before the first is sent."""

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


def read_model(path: Path, model: type[Model], what: str, prepare: Callable[[dict[str, Any]], Any]) -> Model:
    """Return the model that a YAML file describes.

    Args:
        path: the file.
        model: the pydantic model.
        what: the file's name in messages, such as `preset`.
        prepare: is applied to the file's mapping before the model reads it.

    Raises:
        UserError: with the file, the line or key, and the reason.
    """
    try:
        data = read_yaml(path).data
    except OSError as error:
        raise UserError(f"{what} {str(path)!r} cannot be read: {error.strerror}; give a YAML file") from None
    except YamlError as error:
        raise UserError(f"{error.place}: not valid YAML: {error.reason}; correct that line") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: a {what} is a mapping with the keys {', '.join(model.model_fields)}")
    try:
        return model.model_validate(prepare(data))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or what
        raise UserError(f"{path}: {place}: {_reason(first['type'], first['msg'])}") from None


def read_text(path: Path, what: str, form: str) -> str:
    """Return the text of a file, without the mark that spreadsheets write at its beginning.

    Args:
        path: the file.
        what: the file's name in messages.
        form: the expected form, in messages.

    Raises:
        UserError: if it cannot be read, is not a regular file, is larger than `TEXT_LIMIT`, or is not UTF-8.
    """
    try:
        content = read_regular_file(path, TEXT_LIMIT)
        reason = next((reason for start, reason in _NO_TEXT if content.startswith(start)), None)
        text = "" if reason else content.decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or "the file system refuses it"
    except UnicodeDecodeError as error:
        reason = f"byte {content[error.start]:#04x} at position {error.start} is not UTF-8"
    if reason:
        raise UserError(f"{what} {str(path)!r} cannot be read: {reason}; give {form}")
    return text


_NO_TEXT = (
    (b"version https://git-lfs.github.com/", "this is a pointer of Git LFS, not the file; run `git lfs pull`"),
    ((b"\xff\xfe", b"\xfe\xff"), "this is UTF-16; save it as UTF-8"),
    (b"\x1f\x8b", "this is compressed with gzip; unpack it"),
    (b"PK\x03\x04", "this is a ZIP archive; unpack it"),
    (b"\x28\xb5\x2f\xfd", "this is compressed with Zstandard; unpack it"),
    (b"PAR1", "this is a Parquet file; convert it"),
)
"""Beginnings of files that people have in the place of a text, and what to do."""


def split_lines(text: str) -> list[str]:
    """Return the lines of a text. `str.splitlines` would also split at characters that JSON may have in a string."""
    return _LINE_END.split(text)


_LINE_END = re.compile(r"\r\n|\n|\r")


def json_reason(error: Exception) -> str:
    """Return why a text is not JSON, from the exception of `json.loads`."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"


def read_lines(path: Path, what: str, form: str, parse: Callable[[str, list[Value]], Value]) -> list[Value]:
    """Return the value of each line that is not empty.

    Args:
        path: the file.
        what: the file's name in messages.
        form: the expected form, in messages.
        parse: returns the value of a line, given the values before it; raises ValueError with the reason.

    Raises:
        UserError: with file and line, if the file cannot be read, is empty, or `parse` refuses a line.
    """
    values: list[Value] = []
    for number, line in enumerate(split_lines(read_text(path, what, form)), 1):
        if not line.strip():
            continue
        try:
            values.append(parse(line.strip(), values))
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}") from None
    if not values:
        raise UserError(f"{what} {str(path)!r} is empty; give {form}")
    return values


def _reason(kind: str, message: str) -> str:
    """Return what is wrong with a value, in words of this file's format."""
    if kind == "missing":
        return "this key is missing; add it, as docs/workloads.md shows"
    return message.removeprefix("Value error, ")
