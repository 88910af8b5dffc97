"""Commands beside a server, such as its client: started, recorded, waited for and ended."""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tuner.processes.records import ProcessRecords
from tuner.processes.supervisor import start_server


class Job(Protocol):
    """One run of a command."""

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds until it ends; return whether it has ended."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, -N for signal N; None while it runs, or if it is lost."""

    def cancel(self) -> None:
        """Kill it and its process group, and wait until it has ended."""


class PlainJob:
    """A command in a process of its own. It is recorded, so that the watchdog ends it with a killed worker."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path, records: ProcessRecords
    ) -> None:
        self._process = start_server(argv, environment, log, cwd, records, None, f"client {Path(argv[0]).name}")
        self._ended = select.poll()
        self._handle = os.pidfd_open(self._process.pid)
        self._ended.register(self._handle, select.POLLIN)
        weakref.finalize(self, os.close, self._handle)

    def wait(self, timeout_s: float) -> bool:
        """See `Job`."""
        return bool(self._ended.poll(1000 * timeout_s))

    @property
    def exit_code(self) -> int | None:
        """See `Job`."""
        return self._process.exit_code()

    def cancel(self) -> None:
        """See `Job`."""
        self._process.stop(0)


class ResultError(ValueError):
    """The result file is missing, is not a result, or has an impossible value.

    Attributes:
        written: whether there is a result; without one, the client's log may have the reason.
    """

    def __init__(self, message: str, *, written: bool = True) -> None:
        super().__init__(message)
        self.written = written
