"""Numbers of a model's `config.json`, with the key in the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHOWN = 80


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
    if not is_number or value != int(value) or value < 1:
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
