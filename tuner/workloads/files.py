"""Reading what users write: YAML checked against a schema, and files of one value a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tuner.errors import UserError

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


def read_model(path: Path, model: type[Model], what: str, prepare: Callable[[dict[str, Any]], Any]) -> Model:
    """Return the model that a YAML file describes; `prepare` sees its mapping first.

    Raises:
        UserError: with the file, the line or the place, and what is wrong.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{what} {str(path)!r} cannot be read: {error.strerror}; give a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: not YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: a {what} is a mapping of {', '.join(model.model_fields)}")
    try:
        return model.model_validate(prepare(data))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or what
        raise UserError(f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}") from None


def read_lines(path: Path, what: str, form: str, parse: Callable[[str, list[Value]], Value]) -> list[Value]:
    """Return a value for each line that is not empty.

    Args:
        path: the file.
        what: its name in messages.
        form: what to give instead, in messages.
        parse: makes the value of a line, given those before it; a ValueError says what is wrong.

    Raises:
        UserError: naming file and line, when it cannot be read, is empty, or `parse` refuses a line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{what} {str(path)!r} cannot be read: {error}; give {form}") from None
    found: list[Value] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(parse(line.strip(), found))
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}") from None
    if not found:
        raise UserError(f"{what} {str(path)!r} is empty; give {form}")
    return found
