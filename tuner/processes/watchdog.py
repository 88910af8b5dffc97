"""Start the watchdog of a worker: a small process that ends the worker's servers when the worker or the driver ends.

A killed worker cannot end its servers, whose children hold the GPU. So a second process does: `watchdog_program.py`,
in a process session of its own. It is not a child of the worker, because Ray kills the children of a worker that it
ends. One watchdog serves all servers of a worker, so that no further trial waits for its start.

It reads the process records (`tuner.processes.records`) and holds the reading end of a pipe whose writing end the
worker holds. Each side thereby sees the end of the other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from tuner.processes.family import Identity

PROGRAM = Path(__file__).with_name("watchdog_program.py")
_IN_BACKGROUND = '"$@" &'
"""Shell script that starts its arguments and ends at once, so that they become a grandchild without a parent here."""

_log = logging.getLogger(__name__)


class Watchdog:
    """The watchdog of one worker.

    It ends with this object if the worker has no process records then, else after the worker's end, with its servers.
    """

    def __init__(self, folder: Path, owners: Sequence[Identity]) -> None:
        """Prepare the watchdog; `ensure_running` starts it.

        Args:
            folder: the folder of the process records.
            owners: the worker first, then the driver, if it runs on this host.
        """
        self._folder = folder
        self._owners = tuple(owners)
        self._lock = threading.Lock()
        self._close_pipe: weakref.finalize[[int], Watchdog] | None = None
        self._writer = -1

    def ensure_running(self) -> None:
        """Start the watchdog unless it runs. A failed start is logged: the next worker then ends the left servers."""
        with self._lock:
            if self._runs():
                return
            if self._close_pipe is not None:
                self._close_pipe()
            try:
                self._start()
            except OSError as error:
                _log.warning("no watchdog could be started (%s); servers outlive a killed worker", error)

    def _runs(self) -> bool:
        """Return whether a watchdog holds the reading end of the pipe."""
        if self._close_pipe is None or not self._close_pipe.alive:
            return False
        poll = select.poll()
        poll.register(self._writer, 0)  # 0: only POLLERR, which says that nobody holds the reading end
        return not poll.poll(0)

    def _start(self) -> None:
        """Start the watchdog as a grandchild, with a pipe that closes when this object or this process ends."""
        reader, writer = os.pipe()
        try:
            owners = [f"{owner.pid}:{owner.started}" for owner in self._owners]
            program = [sys.executable, "-I", "-S", str(PROGRAM), str(self._folder.absolute()), str(reader), *owners]
            subprocess.run(
                ["/bin/sh", "-c", _IN_BACKGROUND, "watchdog", *program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                pass_fds=(reader,),
                check=False,
            )
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        self._writer = writer
        self._close_pipe = weakref.finalize(self, _close, writer)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
