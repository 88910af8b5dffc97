"""Configurations that the user names, to measure first or as the baseline."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence

from search_spaces import ParameterValue, ResolvedSpace, Space, SpaceError
from search_spaces.argv import long_name, one_spelling
from search_spaces.parameter import Parameter
from tuner.errors import SettingError, as_text
from tuner.study.specification.spec import Enqueued

BASELINE_LABEL = "baseline"


def check_configuration(space: Space, field: str, text: str) -> None:
    """Check the name of a configuration, or the names of its parameters, before the space is resolved."""
    check_parameters(space, field, text, configuration_of(space, field, text))


def configuration_of(space: Space | ResolvedSpace, field: str, text: str) -> Mapping[str, ParameterValue]:
    """Return a configuration, by its name in the space or as JSON such as `{"max_num_seqs": 64}`.

    Raises:
        SettingError: about the setting `field`, for a name that the space does not have, and for no valid JSON.
    """
    if not text.lstrip().startswith("{"):
        if text not in space.named:
            known = ", ".join(space.named) or "none for this space and hardware"
            raise SettingError(field, text, f"no configuration has this name; known: {known}")
        return space.named[text].config
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else "too large"
        rule = f"not valid JSON ({reason})"
        raise SettingError(field, text, rule, 'write for example {"max_num_seqs": 64}') from None
    assert isinstance(config, dict)
    return config


def check_parameters(space: Space, field: str, value: str, names: Iterable[str]) -> None:
    """Check names of parameters."""
    for name in names:
        if name not in space.parameter_names:
            near = difflib.get_close_matches(name, space.parameter_names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(space.parameter_names)}"
            raise SettingError(field, value, f"space {space.name!r} has no parameter {name!r}", hint)


def read_enqueued(space: ResolvedSpace, field: str, text: str) -> Enqueued:
    """Return a configuration, by its name in the space or as JSON.

    Raises:
        SettingError: about the setting `field`, for a configuration that is not in the space.
    """
    reason = next((each.reason for each in space.dropped if each.parameter == f"named:{text}"), None)
    if reason is not None:
        raise SettingError(field, text, as_text(reason))
    try:
        return Enqueued(text, space.complete(configuration_of(space, field, text)))
    except SpaceError as error:
        raise SettingError(field, text, str(error)) from None


def are_flags(text: str) -> bool:
    """Return whether a baseline is written as flags of the server."""
    return text.lstrip().startswith("-")


def read_baseline(space: ResolvedSpace, text: str) -> Enqueued:
    """Return the user's baseline: a name in the space, JSON, or flags such as `--max-num-seqs 64`.

    Raises:
        SettingError: for a configuration that is not in the space. Rules are not checked: it runs today.
    """
    config = _config_of_flags(space, text) if are_flags(text) else read_enqueued(space, "baseline", text).config
    return Enqueued(BASELINE_LABEL, config)


def _config_of_flags(space: ResolvedSpace, text: str) -> dict[str, ParameterValue]:
    """Return the configuration whose rendered flags are the given ones."""
    try:
        words = one_spelling(shlex.split(text))
    except ValueError as error:
        raise SettingError("baseline", text, f"not readable as flags: {error}") from None
    config: dict[str, ParameterValue] = {}
    while words:
        count, name, value = _match(space, words)
        if not count:
            raise SettingError("baseline", text, *_why_unknown(space, words[0]))
        config[name] = value
        words = words[count:]
    try:
        return space.complete(config)
    except SpaceError as error:
        raise SettingError("baseline", text, str(error)) from None


def _why_unknown(space: ResolvedSpace, flag: str) -> tuple[str, str]:
    """Return why no offered parameter has a flag, and what to do."""
    left_out = {each.parameter: each.reason for each in space.dropped if each.value is None}
    for name, spec in space.specs.items():
        if name in left_out and flag in {long_name(each) for each in (spec.flag, spec.no_flag) if each is not None}:
            return f"{flag} is not offered: {left_out[name]}", "leave it out of the baseline"
    return f"{flag} is no flag of the search space", "give flags that all servers need after `--`"


def _match(space: ResolvedSpace, words: Sequence[str]) -> tuple[int, str, ParameterValue]:
    """Return how many words the first flag has, its parameter and its value; 0 words if no parameter has the flag."""
    for parameter in space.parameters:
        for choice in parameter.choices:
            arguments = one_spelling(choice.args or ())
            if arguments and list(words[: len(arguments)]) == arguments:
                return len(arguments), parameter.name, choice.value
        spec = parameter.spec
        on, off = (None if flag is None else long_name(flag) for flag in (spec.flag, spec.no_flag))
        if spec.json_target is None and spec.env is None and words[0] in (on, off):
            if parameter.kind == "bool":
                return 1, parameter.name, words[0] == on
            return 2, parameter.name, _value(parameter, words[1] if len(words) > 1 else "")
    return 0, "", None


def _value(parameter: Parameter, word: str) -> ParameterValue:
    """Return the parameter's value that a word stands for; the word itself where it stands for none."""
    for choice in parameter.choices:
        if choice.value is not None and str(choice.value) == word:
            return choice.value
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return word
