"""Reads the study's own server arguments: which parameters of a space they set, and to which values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from search_spaces.expressions.language import UNKNOWN
from search_spaces.parameter import full_choices
from search_spaces.rendering.json_keys import is_list, value_at
from search_spaces.rendering.words import last_place, long_name, object_of, one_spelling, value_after
from search_spaces.schema import ParameterSpec

CAPTURE_FLAGS = ("--cudagraph-capture-sizes", "--max-cudagraph-capture-size")
"""vLLM's flags that say which sizes are captured; with one of them, no other sizes can be chosen."""

_TWINS = {
    "--attention-backend": ("--attention-config", "backend"),
    "--cudagraph-capture-sizes": ("--compilation-config", "cudagraph_capture_sizes"),
    "--max-cudagraph-capture-size": ("--compilation-config", "max_cudagraph_capture_size"),
}
"""vLLM's flags that are keys of a JSON object, too. vLLM refuses both together."""

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
    """Return the value that the last of the words sets, as a tuple of one; an empty tuple if none sets it."""
    explicit = {**_by_choices(spec, words), **_by_flags(spec, words)}
    found = {**_negations(spec, words), **explicit}
    last = max(found, default=None)
    if last is not None and (last in explicit or found[last] is not None):
        return (found[last],)
    for flag in (spec.flag, *(CAPTURE_FLAGS if _has_computed_sizes(spec) else ())):
        value = None if flag is None else _in_twin(long_name(flag), words)
        if value is not None:
            return (_parse(spec, str(value)) if flag == spec.flag else UNKNOWN,)
    target = spec.json_target
    content = None if target is None else object_of(target.flag, words)
    if target is None or content is None:
        return (None,) if found else ()
    return (_value_at(spec, content, target.key) if isinstance(content, dict) else UNKNOWN,)


def _by_choices(spec: ParameterSpec, words: Sequence[str]) -> dict[int, object]:
    """Return the values of the choices whose arguments are among the words, by their places."""
    found: dict[int, object] = {}
    for choice in full_choices(spec):
        part = one_spelling(choice.args or ())
        for place in range(len(words)) if part else ():
            if list(words[place : place + len(part)]) == part:
                found[place] = choice.value
    if _has_computed_sizes(spec):
        found |= {place: UNKNOWN for place, word in enumerate(words) if word in CAPTURE_FLAGS}
    return found


def _by_flags(spec: ParameterSpec, words: Sequence[str]) -> dict[int, object]:
    """Return the values of the parameter's flag and its negated one, by their places."""
    found: dict[int, object] = {}
    for flag, is_on in ((spec.flag, True), (spec.no_flag, False)):
        if flag is not None and long_name(flag) in words:
            place = last_place(long_name(flag), words)
            found[place] = _parse(spec, value_after(long_name(flag), words)) if is_on else False
    return found


def _negations(spec: ParameterSpec, words: Sequence[str]) -> dict[int, object]:
    """Return what `--no-FLAG` sets, by its place: false, or no value where the flag stands for a choice."""
    positive = [] if spec.flag is None else [(long_name(spec.flag), False if spec.type == "bool" else None)]
    positive += [(one_spelling(choice.args)[0], None) for choice in full_choices(spec) if choice.args]
    negated = {f"--no-{flag.removeprefix('--')}": value for flag, value in positive}
    return {place: negated[word] for place, word in enumerate(words) if word in negated}


def _has_computed_sizes(spec: ParameterSpec) -> bool:
    return any(choice.compute == "capture_sizes" for choice in full_choices(spec))


def _in_twin(flag: str, words: Sequence[str]) -> object:
    """Return the value of a flag that is a key of a JSON object, too; None if no object has it."""
    twin = _TWINS.get(flag)
    content = None if twin is None else object_of(twin[0], words)
    return content.get(twin[1]) if twin is not None and isinstance(content, dict) else None


def _parse(spec: ParameterSpec, text: str | None) -> object:
    if text is None:
        return True
    for choice in full_choices(spec):
        if choice.value is not None and str(choice.value) == text:
            return choice.value
    values = [choice.value for choice in full_choices(spec) if choice.value is not None]
    numbers = spec.type in ("int", "float") or (values and all(isinstance(value, int | float) for value in values))
    number, factor = (text[:-1], _SUFFIXES[text[-1]]) if text[-1:] in _SUFFIXES else (text, 1)
    try:
        value = float(number) * factor
    except ValueError:
        return UNKNOWN if numbers else text
    if not math.isfinite(value):
        return UNKNOWN
    return int(value) if value.is_integer() and spec.type != "float" else value


def _value_at(spec: ParameterSpec, content: Mapping[str, object], key: str) -> object:
    """Return the value of a key; of a list, the first item that is one of the parameter's values."""
    found = value_at(content, key)
    if not is_list(key):
        return found
    values = [choice.value for choice in full_choices(spec)]
    return next((item for item in found if item in values), None) if isinstance(found, list) else None
