"""Configurations that are measured before the search: by name or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from search_spaces import ParameterValue, ResolvedSpace, Space, SpaceError
from tuner.errors import SettingError
from tuner.study.specification.spec import Enqueued


def read_configuration(text: str) -> dict[str, ParameterValue] | None:
    """Return a configuration that is written as JSON, such as `{"max_num_seqs": 64}`; None for a name."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else "too large"
        rule = f"not valid JSON ({reason})"
        raise SettingError("enqueue", text, rule, 'write for example {"max_num_seqs": 64}') from None
    assert isinstance(config, dict)
    return config


def enqueued_values(space: Space, text: str) -> Mapping[str, ParameterValue]:
    """Return the values of a configuration to enqueue, by its name or as JSON."""
    config = read_configuration(text)
    return space.named[text].config if config is None else config


def unknown_configuration(name: str, named: Iterable[str]) -> SettingError:
    known = ", ".join(named) or "none for this space and hardware"
    return SettingError("enqueue", name, f"no configuration has this name; known: {known}")


def enqueued(space: ResolvedSpace, text: str) -> Enqueued:
    """Return a configuration, by its name in the space or as JSON."""
    config = read_configuration(text)
    if config is None and text not in space.named:
        raise unknown_configuration(text, space.named)
    try:
        return Enqueued(text, space.complete(space.named[text].config if config is None else config))
    except SpaceError as error:
        raise SettingError("enqueue", text, str(error)) from None
