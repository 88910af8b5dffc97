"""Load the objects that installed packages register as entry points."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

T = TypeVar("T")


class PluginError(Exception):
    """A registered object that cannot be used; the message is one line with the next step."""


def plugins(group: str, kind: type[T]) -> Iterator[tuple[EntryPoint, T]]:
    """Yield the registered objects of an entry point group, each with its entry.

    Args:
        group: such as `tuner.engines`.
        kind: the type that each of them has.

    Raises:
        PluginError: for an object that cannot be loaded, or has another type.
    """
    for entry in entry_points(group=group):
        try:
            found = entry.load()
        except (ImportError, AttributeError) as error:
            raise unusable(entry, f"cannot be loaded: {error}") from None
        if not isinstance(found, kind):
            raise unusable(entry, f"is no {kind.__name__}, but a {type(found).__name__}")
        yield entry, found


def unusable(entry: EntryPoint, reason: str) -> PluginError:
    """Return the error for a registered object that cannot be used."""
    name = f"{entry.value}, which is registered as {entry.name!r} of {entry.group},"
    return PluginError(f"{name} {reason}; update its package, or remove it")
