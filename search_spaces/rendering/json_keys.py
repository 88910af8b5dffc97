"""Keys of a flag's JSON object: `a.b` is the key b of the object a, and `a[]` adds to the list a."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

KEY_PATTERN = r"^[^.\[\]]+(\.[^.\[\]]+)*(\[\])?$"
_LIST = "[]"


def put(content: dict[str, Any], key: str, value: object) -> None:
    """Set a key of an object, and make the objects and the list on its way.

    A value of a list that is there already is not added again. Keys of one object must not conflict
    (`conflicting_keys`).
    """
    *parents, last = key.removesuffix(_LIST).split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
    if not key.endswith(_LIST):
        content[last] = value
        return
    values = content.setdefault(last, [])
    if value not in values:
        values.append(value)


def value_at(content: object, key: str) -> object:
    """Return the value of a key in an object, a list for a key that ends in `[]`; None where there is none."""
    for part in key.removesuffix(_LIST).split("."):
        if not isinstance(content, Mapping):
            return None
        content = content.get(part)
    if key.endswith(_LIST):
        return content if isinstance(content, list) else None
    return content


def is_list(key: str) -> bool:
    """Return whether a key adds to a list."""
    return key.endswith(_LIST)


def conflicting_keys(keys: Iterable[str]) -> tuple[str, str] | None:
    """Return two keys that cannot be in one object, as `a` and `a.b` or `a` and `a[]`; None if all can."""
    known = sorted(set(keys))
    for key in known:
        path = key.removesuffix(_LIST)
        for other in known:
            same_list = other != key and other.removesuffix(_LIST) == path
            if same_list or other.startswith(f"{path}."):
                return key, other
    return None
