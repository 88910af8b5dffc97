"""End work from outside: the cancel token of a trial, and the requests to stop a run.

A cancelled run has ended after `LIMIT_S` seconds, whatever it does (docs/reliability.md).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol

LIMIT_S = 5.0
"""Seconds from a cancellation until everything has ended, on a machine that is not overloaded."""

NOTICE_S = 1.0
"""Of them: until a driver of the service has noticed it."""

WORK_S = 2.5
"""Of them: until the work has ended by itself. What is left then is killed (`tuner.processes.last_resort`)."""

STOP_S = 1.0
"""Of `WORK_S`: what a server of a cancelled trial has between SIGTERM and SIGKILL."""


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
        at_once: as `stop`, which is set with it; what does not end by itself, such as a sync to MLflow, is cut off.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    pause: threading.Event = field(default_factory=threading.Event)
    conclude: threading.Event = field(default_factory=threading.Event)
    at_once: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Ask for the end within `LIMIT_S` seconds."""
        self.stop.set()
        self.at_once.set()

    def ends_search(self) -> bool:
        """Return whether no trial may start."""
        return self.pause.is_set() or self.conclude.is_set()
