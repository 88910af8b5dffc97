"""The exception of this package."""

from __future__ import annotations


class SpaceError(ValueError):
    """A search space, or a name or value in it, is not valid; the message is one line and ends with what to do."""
