"""Configurations as what differs from the engine's defaults, in a given width."""

from __future__ import annotations

from collections.abc import Mapping

from storage.records import Config, JsonScalar


def changes(config: Config, defaults: Config) -> dict[str, JsonScalar]:
    """Return the values that differ from the engine's defaults; a parameter without a known default counts as changed.

    Args:
        config: values by parameter; None stands for the engine's default.
        defaults: the engine's defaults by parameter, as far as they are known.
    """
    return {
        name: value
        for name, value in config.items()
        if value is not None and not (name in defaults and _same(defaults[name], value))
    }


def _same(one: JsonScalar, other: JsonScalar) -> bool:
    """Return whether two values are one; True is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def words(values: Mapping[str, JsonScalar]) -> list[str]:
    """Return `name=value` for each value."""
    return [f"{name}={value}" for name, value in values.items()]


def full(config: Config, defaults: Config) -> str:
    """Return all that differs from the defaults on one line."""
    return " ".join(words(changes(config, defaults))) or "the defaults"


def short(config: Config, defaults: Config, width: int) -> str:
    """Return as much of what differs from the defaults as fits into `width`, and how many values are left out.

    No value is cut: `quantization=fp8 block_size=32 +7 more`.
    """
    every = words(changes(config, defaults))
    if not every:
        return "the defaults"
    for count in range(len(every), 0, -1):
        rest = len(every) - count
        text = " ".join([*every[:count], *([f"+{rest} more"] if rest else [])])
        if len(text) <= width:
            return text
    return f"{len(every)} changes" if len(every) > 1 else "1 change"
