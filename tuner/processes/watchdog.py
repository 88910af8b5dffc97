"""Start the watchdog of a worker: a small process that ends the worker's servers when the worker or the driver ends.

A killed worker cannot end its servers, and their children, which hold the GPU, outlive them. The watchdog
(`watchdog_program.py`) leads a session of its own and is no child of the worker: Ray kills the children of a worker
that it ends. One watchdog serves all servers of a worker, so that a trial does not wait for its start.
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

_log = logging.getLogger(__name__)


class Watchdog:
    """The watchdog of one worker. It ends with this object, or once the worker has ended and has no records left."""

    def __init__(self, folder: Path, owners: Sequence[Identity]) -> None:
        """Prepare the watchdog of `owners[0]`, whose records are in `folder`; `ensure_running` starts it.

        Args:
            folder: where the records are.
            owners: the worker and, if it runs on this host, the driver.
        """
        self._folder = folder
        self._owners = tuple(owners)
        self._lock = threading.Lock()
        self._pipe: weakref.finalize[[int], Watchdog] | None = None
        self._descriptor = -1

    def ensure_running(self) -> None:
        """Start the watchdog unless it runs; a start that fails is logged, and the next worker cleans up."""
        with self._lock:
            if self._runs():
                return
            if self._pipe is not None:
                self._pipe()
            try:
                self._start()
            except OSError as error:
                _log.warning("no watchdog could be started (%s); servers outlive a killed worker", error)

    def _runs(self) -> bool:
        """Return whether a watchdog holds the other end of the pipe."""
        if self._pipe is None or not self._pipe.alive:
            return False
        poll = select.poll()
        poll.register(self._descriptor, 0)
        return not poll.poll(0)

    def _start(self) -> None:
        """Start the watchdog as a grandchild. It sees the end of its pipe when this object or this process ends."""
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
        self._descriptor = writer
        self._pipe = weakref.finalize(self, _close, writer)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
