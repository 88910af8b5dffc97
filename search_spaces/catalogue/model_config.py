"""Typed access to the keys of a model's `config.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 80
"""Most characters of a key with its value in a message."""
_SHOWN_VALUE = 40
"""Most characters of a value in a message."""


@dataclass(frozen=True)
class Unread:
    """What of a model is not understood: its `kind`, and the `key` of config.json that says so."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} is not simulated ({self.key} in config.json)"


class NotUnderstood(ValueError):
    """A key of a config.json, or a value, whose meaning is not known."""

    def __init__(self, kind: str, key: str) -> None:
        self.unread = Unread(kind, key)
        super().__init__(str(self.unread))


def shown(value: object) -> str:
    """Return a value of a file in one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN_VALUE else f"{text[: _SHOWN_VALUE - 1]}…"


def whole_number(config: Mapping[str, Any], key: str) -> int:
    """Return a whole number of at least 1.

    Raises:
        KeyError: if it is missing or null.
        ValueError: if it is no such number, with the key.
    """
    value = config.get(key)
    if value is None:
        raise KeyError(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value != int(value) or value < 1:
        raise ValueError(f"{key} {value!r}"[:_SHOWN])
    return int(value)


def number(config: Mapping[str, Any], key: str, default: float) -> float:
    """Return a positive number; the default if it is missing or null.

    Raises:
        ValueError: if it is no such number, with the key.
    """
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{key} {value!r}"[:_SHOWN])
    return float(value)


@dataclass(frozen=True)
class Keys:
    """The keys of a decoder: those that the file gives, and the class's own values for those that it leaves out.

    A model's class may know a fact by several names: the methods take them all, and a given one comes before a default.
    A key that is null in the file has no value, whatever the class's own is. `facts` say what the class makes of them.
    """

    given: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def get(self, *names: str) -> Any:
        """Return the value of the first name that is there; None without one."""
        for source in (self.given, self.defaults):
            for name in names:
                if name in source:
                    return source[name]
        return None

    def count(self, *names: str, default: int | None = None) -> int:
        """Return a whole number of at least 1; of a list, the number that all its elements have.

        Raises:
            KeyError: with the first name, if there is none and no default.
            NotUnderstood: for a list with several numbers.
            ValueError: if it is no such number, with its name.
        """
        name = next((each for source in (self.given, self.defaults) for each in names if each in source), names[0])
        value = self.get(*names)
        if value is None and default is not None:
            return default
        if isinstance(value, list) and value:
            if any(each != value[0] for each in value):
                raise NotUnderstood("a model whose layers differ", f"{name} {shown(value)}")
            value = value[0]
        return whole_number({name: value}, name)

    def amount(self, *names: str) -> int:
        """Return a whole number, 0 without one; arguments and errors as for `count`."""
        return 0 if self.get(*names) in (None, 0, False, [0]) else self.count(*names)
