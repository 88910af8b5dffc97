"""Reads files that users write: YAML with a schema, and text files with one value per line."""

from __future__ import annotations

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


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        OSError: if it cannot be read, is not a regular file, or is larger than `TEXT_LIMIT`.
        UnicodeDecodeError: if it is not UTF-8.
    """
    return read_regular_file(path, TEXT_LIMIT).decode()


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
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{what} {str(path)!r} cannot be read: {error}; give {form}") from None
    values: list[Value] = []
    for number, line in enumerate(lines, 1):
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
