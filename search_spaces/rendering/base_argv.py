"""Reads the study's own server arguments: which parameters of a space they set, and to which values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from search_spaces.expressions.language import UNKNOWN
from search_spaces.parameter import full_choices
from search_spaces.rendering.json_keys import is_list, value_at
from search_spaces.rendering.words import dotted_object, long_name, one_spelling, value_after
from search_spaces.schema import ParameterSpec

_SUFFIXES = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}


def fixed_values(parameters: Mapping[str, ParameterSpec], argv: Sequence[str]) -> dict[str, object]:
    """Return the parameters that `argv` sets, with their values; `UNKNOWN` for a value that cannot be read.

    A parameter is set by its flag, its negated flag, or the arguments of one of its choices, by any of their names. A
    flag with a JSON object, also in parts such as `--flag.key value`, sets every parameter that is part of the object;
    a parameter that the object leaves out is None.
    """
    words = one_spelling(argv)
    values = {name: _value_in(spec, words) for name, spec in parameters.items()}
    return {name: value[0] for name, value in values.items() if value}


def _value_in(spec: ParameterSpec, words: Sequence[str]) -> tuple[object, ...]:
    """Return the value that the words set, as a tuple of one; an empty tuple if they do not set the parameter."""
    for choice in full_choices(spec):
        if choice.args and _is_sublist(one_spelling(choice.args), words):
            return (choice.value,)
    on, off = (None if flag is None else long_name(flag) for flag in (spec.flag, spec.no_flag))
    if off is not None and off in words:
        return (False,)
    if on is not None and on in words:
        return (_parse(spec, value_after(on, words)),)
    if spec.json_target is None:
        return ()
    target = spec.json_target
    parts = dotted_object(target.flag, words)
    if parts is not None:
        return (_value_at(spec, parts, target.key),)
    if target.flag in words:
        return (_value_in_json(spec, value_after(target.flag, words), target.key),)
    return ()


def _is_sublist(part: Sequence[str], words: Sequence[str]) -> bool:
    return any(list(words[i : i + len(part)]) == list(part) for i in range(len(words)))


def _parse(spec: ParameterSpec, text: str | None) -> object:
    if text is None:
        return True
    for choice in full_choices(spec):
        if choice.value is not None and str(choice.value) == text:
            return choice.value
    number, factor = (text[:-1], _SUFFIXES[text[-1]]) if text[-1:] in _SUFFIXES else (text, 1)
    try:
        value = float(number) * factor
    except ValueError:
        return UNKNOWN if spec.type in ("int", "float") else text
    if not math.isfinite(value):
        return UNKNOWN
    return int(value) if value.is_integer() and spec.type != "float" else value


def _value_in_json(spec: ParameterSpec, text: str | None, key: str) -> object:
    try:
        content = json.loads(text or "")
    except (ValueError, RecursionError):
        return UNKNOWN
    return _value_at(spec, content, key) if isinstance(content, dict) else UNKNOWN


def _value_at(spec: ParameterSpec, content: Mapping[str, object], key: str) -> object:
    """Return the value of a key; of a list, the first item that is one of the parameter's values."""
    found = value_at(content, key)
    if not is_list(key):
        return found
    values = [choice.value for choice in full_choices(spec)]
    return next((item for item in found if item in values), None) if isinstance(found, list) else None
