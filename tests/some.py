"""A value that is there, although its type allows None."""

from typing import TypeVar

T = TypeVar("T")


def some(value: T | None) -> T:
    """Return the value; fail if it is None."""
    assert value is not None
    return value
