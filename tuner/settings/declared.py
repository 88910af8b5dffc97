"""Declarations of settings: what each has beside name, type and default, and what every surface reads from it.

A model of settings is a frozen dataclass whose fields are annotated with a `Setting`. Nothing here imports pydantic,
because the help of a command reads the models, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tuner.errors import SettingError, spelled

STUDY = "Study"
MODEL = "Model and engine"
WORKLOAD = "Workload"
GOALS = "Objectives and SLOs"
SIZE = "Servers for a load"
SPACE = "Search space"
SEARCH = "Search"
CONFIRMATION = "Confirmation"
RUN = "Run"
QUEUE = "Queue"
OUTPUT = "Output"
SERVER = "Server"
STUDIES = "Studies"
POLICY = "What users may ask"
SIGN_IN = "Sign-in"
PANELS = (
    *(SERVER, STUDIES, QUEUE, STUDY, MODEL, WORKLOAD, GOALS, SIZE, SPACE),
    *(SEARCH, CONFIRMATION, RUN, OUTPUT, POLICY, SIGN_IN),
)
"""The panels in the order of the help."""

DURATION = "DURATION"
"""The `value` of a setting that is a duration."""

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_Model = TypeVar("_Model")
_SHOWN = 60
"""Most characters of a value in a message."""


@dataclass(frozen=True)
class Number:
    """A number from `least` to `most`, both included."""

    least: float
    most: float

    def check(self, name: str, value: float) -> None:
        """Refuse a value beyond the limit, and NaN."""
        if not self.least <= value <= self.most:
            rule = f"a service takes {self.least:,.0f} to {self.most:,.0f}"
            raise SettingError(name, value, rule, "lower it" if value > self.most else "give one of these")

    @property
    def schema(self) -> dict[str, Any]:
        """The limit in JSON Schema."""
        return {"minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Text:
    """A text of at most `longest` characters."""

    longest: int

    def check(self, name: str, value: str) -> None:
        """Refuse a text beyond the limit."""
        if len(value) > self.longest:
            rule = f"{name} has {len(value):,} characters, and {self.longest:,} are the most"
            raise SettingError(name, None, rule, "shorten it")

    @property
    def schema(self) -> dict[str, Any]:
        """The limit in JSON Schema."""
        return {"maxLength": self.longest}


@dataclass(frozen=True)
class Entries:
    """A list, or a mapping, of at most `most` texts, each of at most `longest` characters; a name counts as one."""

    most: int
    longest: int

    def check(self, name: str, value: Mapping[str, object] | tuple[str, ...]) -> None:
        """Refuse more entries or longer ones."""
        if len(value) > self.most:
            rule = f"{name} has {len(value):,} entries, and {self.most:,} are the most"
            raise SettingError(name, None, rule, "leave some out")
        for text in [each for pair in value.items() for each in pair] if isinstance(value, Mapping) else value:
            Text(self.longest).check(name, str(text))

    @property
    def schema(self) -> dict[str, Any]:
        """The limit in JSON Schema; `maxProperties` counts in a mapping, `maxItems` in a list."""
        return {"maxItems": self.most, "maxProperties": self.most}


@dataclass(frozen=True)
class Setting:
    """One setting. Its name, type and default are those of the field.

    Attributes:
        panel: heading above it in the help of a command.
        value: what the value is, such as `NAME`; empty for a switch.
        help: one phrase, or sentences; `{name}` stands for another setting, as in a `SettingError`.
        shown: the default in words, where the field's own is None or empty.
        least: smallest value; None: no bound, or one that depends on other settings.
        most: largest value.
        choices: the possible values; None: any.
        limit: what a service takes of it; None: all from `least` to `most`, and no limit for a switch and for a setting
            that a service does not take.
        option: its name on the command line, where that is another one.
        more_of: the setting of which this one has the further values: `--engine a --engine b`.
    """

    panel: str
    value: str
    help: str
    shown: str | None = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] | None = None
    limit: Number | Text | Entries | None = None
    option: str | None = None
    more_of: str | None = None

    def __post_init__(self) -> None:
        """Let a service take all that is possible, where both bounds say what that is."""
        if self.limit is None and self.least is not None and self.most is not None:
            object.__setattr__(self, "limit", Number(self.least, self.most))

    def check(self, name: str, value: Any) -> None:
        """Refuse a value that no study can have.

        Raises:
            SettingError: with the rule.
        """
        if self.value == DURATION and value is not None:
            seconds_of(name, value)
        if self.choices is not None and value not in self.choices:
            names = f"{name}s: {', '.join(self.choices)}"
            raise SettingError(name, str(value)[:_SHOWN], f"no {name} has this name", names)
        if value is None or self.least is self.most is None:
            return
        if not isinstance(value, int | float):
            raise SettingError(name, value, "not a number", "give one")
        if self.least is not None and not value >= self.least:  # NaN is not, either
            raise SettingError(name, value, f"at least {self.least:g} is needed", "raise it")
        if self.most is not None and not value <= self.most:
            raise SettingError(name, value, f"at most {self.most:g} is possible", "lower it")

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the schema of the type with help, choices and limits, each of which counts for values of its type."""
        limits = {} if self.limit is None else self.limit.schema
        choices = {} if self.choices is None else {"enum": [*self.choices]}
        return {**handler(core), **limits, **choices, "description": spelled(self.help, lambda name: f"`{name}`")}


def settings_of(model: Any) -> Mapping[str, tuple[Any, Setting]]:
    """Return the type and the declaration of each setting of a model by name, panel by panel."""
    return _settings_of(model)


@cache
def _settings_of(model: Any) -> Mapping[str, tuple[Any, Setting]]:  # mypy takes no class of settings for hashable
    hints = get_type_hints(model, include_extras=True)
    declared: dict[str, tuple[Any, Setting]] = {each.name: get_args(hints[each.name]) for each in fields(model)}
    return dict(sorted(declared.items(), key=lambda each: PANELS.index(each[1][1].panel)))


def default_of(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def part(model: type[_Model], settings: Any) -> _Model:
    """Return the settings of a model that `settings` has beside others."""
    return model(**{name: getattr(settings, name) for name in settings_of(model)})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A model of settings; each of its values is checked alone when it is made.

    Raises:
        SettingError: for a value that no study can have.
    """

    def __post_init__(self) -> None:
        """Freeze lists, and check every value."""
        for name, (kind, setting) in settings_of(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, str) and get_origin(kind) is Sequence:
                raise SettingError(name, value[:_SHOWN], "not a list", "give one, with square brackets")
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
            setting.check(name, value)


def check_limits(settings: Settings) -> None:
    """Refuse values beyond what a service takes.

    Raises:
        SettingError: with the first setting that is.
    """
    for name, (_, setting) in settings_of(type(settings)).items():
        value, limit = getattr(settings, name), setting.limit
        if limit is None or value is None:
            continue
        if isinstance(limit, Number) and isinstance(value, str):
            NAME.check(name, value)
            value = read_duration(name, value)
        limit.check(name, value)


NAME = Text(300)


def seconds_of(name: str, value: float | str) -> float:
    """Return the seconds of a setting that is a duration: a number of them, or a text.

    Raises:
        SettingError: for another form and for 0.
    """
    if isinstance(value, str):
        return read_duration(name, value)
    if not value > 0:
        raise SettingError(name, value, "a duration is longer than 0", "give seconds, or for example '2h'")
    return value


def read_duration(name: str, text: str) -> float:
    """Return the seconds of a duration such as `90`, `45s`, `30m`, `2h` or `1h30m`.

    Raises:
        SettingError: about the setting `name`, for another form and for 0.
    """
    remedy = "give for example 90s, 45m or 2h"
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd]?)", text.strip())
    if not parts or re.sub(r"\s", "", text) != "".join(number + unit for number, unit in parts):
        raise SettingError(name, text[:_SHOWN], "not a duration", remedy)
    seconds = math.fsum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise SettingError(name, text[:_SHOWN], "a duration is longer than 0", remedy)
    return seconds
