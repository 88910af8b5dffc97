"""The one exception of this package."""

from __future__ import annotations


class SpaceError(ValueError):
    """A search space, a name or a value in it cannot work; one line that ends with the next step."""
