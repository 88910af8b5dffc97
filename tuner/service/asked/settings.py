"""The settings of a submission: the keywords of `tuner.optimize` as JSON, with contents instead of files."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from tuner.errors import SettingError, spelled
from tuner.settings.declared import Number, Setting, check_limits, default_of, settings_of
from tuner.settings.fleet import SIZE_PRESET, SIZED, FleetSettings, SizeSettings
from tuner.settings.study import LARGEST_CONTENT, AskedSettings, StudySettings
from tuner.settings.submit import SubmittedSettings

FILES = "files"
"""The setting beside the keywords: files that contents refer to, by name."""

NAMED_BY_ID = "study"
"""The keyword that a submission lacks: its id is the study's name."""

LARGEST_NUMBER = 2**63


@functools.cache
def _adapter() -> TypeAdapter[SubmittedSettings]:
    return TypeAdapter(with_config(ConfigDict(extra="forbid"))(SubmittedSettings))


def schema(only: Collection[str] | None = None) -> dict[str, Any]:
    """Return the JSON Schema of a submission's settings, or of those that are named."""
    found = _adapter().json_schema()
    content = {"type": "string", "maxLength": LARGEST_CONTENT}
    files = {"type": "object", "additionalProperties": content, "description": "contents that others name, by name"}
    known = {**found["properties"], FILES: files}
    known["workload"]["items"] = content
    return {**found, "properties": {name: each for name, each in known.items() if only is None or name in only}}


def described() -> list[dict[str, Any]]:
    """Return what a form needs of each setting, by panel. `kind` is how a field has its value."""
    defaults = {each.name: default_of(each) for each in fields(SubmittedSettings)}
    declared = settings_of(SubmittedSettings).items()
    return [_form(name, kind, setting, defaults[name]) for name, (kind, setting) in declared]


def _form(name: str, kind: Any, setting: Setting, default: Any) -> dict[str, Any]:
    limit, known = setting.limit, setting.shown
    shown = known if known is not None or default in (None, (), {}) else str(default)
    numbers = {} if not isinstance(limit, Number) else {"least": limit.least, "most": limit.most}
    return {
        **{"name": name, "panel": setting.panel, "label": (setting.option or name).replace("-", " ").replace("_", " ")},
        **{"help": spelled(setting.help, lambda other: other), "kind": _KINDS.get(name) or _form_kind(kind)},
        **{"shown": shown, "default": default, "step": "1" if int in (kind, *get_args(kind)) else "any", **numbers},
    }


_KINDS = {
    "workload": "content",
    "server_arguments": "words",
    "timeout": "text",
    "space": "long",
    "quality_task": "long",
}


def _form_kind(kind: Any) -> str:
    if kind is bool:
        return "flag"
    if get_origin(kind) is not None and get_origin(kind) in (Mapping, Sequence):
        return "pairs" if get_origin(kind) is Mapping else "lines"
    return "number" if {int, float} & {kind, *get_args(kind)} else "text"


def names() -> list[str]:
    """Return the names of all settings."""
    return [*settings_of(SubmittedSettings)]


def read_settings(given: Mapping[str, Any], id: str | None = None) -> StudySettings:
    """Return the settings of a submission; of one that finds servers for a load, `SizeSettings`.

    Args:
        given: JSON values by the names of the keywords; `workload` has the contents of traffic files. `files` is left
            out, see `tuner.service.asked.contents`.
        id: of the submission, which names the study.

    Raises:
        SettingError: for an unknown name, a value of another type, one beyond its limits, or one that such a
            submission does not depend on.
    """
    if NAMED_BY_ID in given:
        raise SettingError(NAMED_BY_ID, str(given[NAMED_BY_ID]), "a submission has an id instead", "give the id")
    for name, value in given.items():
        _check_storable(name, value)
    try:
        asked = _adapter().validate_python({name: value for name, value in given.items() if name != FILES})
    except ValidationError as error:
        raise _explained(error) from None
    check_limits(asked)
    own = settings_of(FleetSettings)
    if asked.size:
        _check_depends({*given} - {*SIZED, *own, "size", FILES}, "a study of servers for a load")
        preset = {} if "preset" in given else {"preset": SIZE_PRESET}
        return SizeSettings(study=id, **{name: getattr(asked, name) for name in (*SIZED, *own)} | preset)
    _check_depends({*given} & {*own}, "a study that tunes, without {size},")
    return StudySettings(study=id, **{name: getattr(asked, name) for name in settings_of(AskedSettings)})


def _check_depends(others: Collection[str], what: str) -> None:
    for name in sorted(others):
        raise SettingError(name, None, f"{{{name}}}: {what} does not depend on it", "leave it out")


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
        near = difflib.get_close_matches(name, names(), n=1)
        remedy = f"did you mean {{{near[0]}}}?" if near else f"settings: {', '.join(names())}"
        return SettingError(name, None, f"there is no setting {name!r}", remedy)
    value = first["input"]
    shown = value if isinstance(value, str | int | float) else str(value)[:80]
    return SettingError(name, shown, first["msg"][:1].lower() + first["msg"][1:])
