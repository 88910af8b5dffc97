"""End work from outside: the cancel token of a trial, and the requests to stop a run."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol


class CancelToken(Protocol):
    """States whether the work must stop; `threading.Event` satisfies it."""

    def is_set(self) -> bool:
        """Return True once the work must stop."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the work must stop, at most `timeout` seconds; return `is_set()`."""


@dataclass(frozen=True)
class Wishes:
    """What a run of a study is asked from outside while it runs; each event is set once.

    Attributes:
        stop: end at once; running servers are stopped, and their trials run again when the study is continued.
        pause: start no trial; the run ends when running ones have ended, and the study can be continued.
        conclude: the same, but then conclude from what was measured.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    pause: threading.Event = field(default_factory=threading.Event)
    conclude: threading.Event = field(default_factory=threading.Event)

    def ends_search(self) -> bool:
        """Return whether no trial may start."""
        return self.pause.is_set() or self.conclude.is_set()
