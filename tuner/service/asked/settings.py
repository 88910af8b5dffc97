"""The settings of a submission: the keywords of `tuner.optimize` as JSON, with contents instead of files."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from tuner.errors import SettingError
from tuner.service.asked.limits import check_limits
from tuner.use_cases.keywords import Keywords

FILES = "files"
"""The setting beside the keywords: files that contents refer to, by name."""

NAMED_BY_ID = "study"
"""The keyword that a submission lacks: its id is the study's name."""

LARGEST_NUMBER = 2**63


@functools.cache
def _adapter() -> TypeAdapter[Keywords]:
    return TypeAdapter(with_config(ConfigDict(extra="forbid"))(Keywords))


def names() -> list[str]:
    """Return the names of all settings."""
    return [each.name for each in fields(Keywords) if each.name != NAMED_BY_ID]


def read_settings(given: Mapping[str, Any], id: str | None = None) -> Keywords:
    """Return the keywords of a submission's settings.

    Args:
        given: JSON values by the names of the keywords; `workload` has the contents of traffic files. `files` is left
            out, see `tuner.service.asked.contents`.
        id: of the submission, which names the study.

    Raises:
        SettingError: for an unknown name, a value of another type, or one beyond its limits.
    """
    if NAMED_BY_ID in given:
        raise SettingError(NAMED_BY_ID, str(given[NAMED_BY_ID]), "a submission has an id instead", "give the id")
    for name, value in given.items():
        _check_storable(name, value)
    try:
        keywords = _adapter().validate_python({name: value for name, value in given.items() if name != FILES})
    except ValidationError as error:
        raise _explained(error) from None
    check_limits(keywords)
    return replace(keywords, study=id)


def _check_storable(name: str, value: object) -> None:
    """Refuse what JSON can have and a database or a file name cannot: halves of characters, and endless numbers."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise SettingError(name, None, f"{name}: the value is not UTF-8, or nested too deeply", "correct it") from None
    if isinstance(value, int) and abs(value) >= LARGEST_NUMBER:
        raise SettingError(name, None, f"{name}: the number is not below 2^63", "lower it")


def _explained(error: ValidationError) -> SettingError:
    """Return the first error as that of a setting."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return SettingError(name, None, f"there is no setting {name!r}", f"settings: {', '.join(names())}")
    value = first["input"]
    shown = value if isinstance(value, str | int | float) else str(value)[:80]
    return SettingError(name, shown, first["msg"][:1].lower() + first["msg"][1:])
