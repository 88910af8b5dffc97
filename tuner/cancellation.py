"""The token that makes a running trial stop."""

from __future__ import annotations

from typing import Protocol


class CancelToken(Protocol):
    """States whether the work must stop; `threading.Event` satisfies it."""

    def is_set(self) -> bool:
        """Return True once the work must stop."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the work must stop, at most `timeout` seconds; return `is_set()`."""
