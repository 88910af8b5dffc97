"""End a cancelled process in time, with everything that it started, whatever its threads do.

A run may hang in a probe of vLLM, the hub, Ray, a prediction, a report, or MLflow. Many of them cannot look at a cancel
token. So the process ends itself from a thread. What a run has stored stays valid whenever it ends, as after `kill -9`.
Watchdogs remove what killed servers leave behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

from tuner.cancellation import WORK_S
from tuner.processes.family import Identity, descendants_of, own_identity, send_signal, wait_until_gone

KILL_S = 1.0
"""Seconds that killed processes have to disappear; watchdogs wait longer for those of servers."""

SAY_S = 1.0
"""Seconds that the last words may take, beside the killing."""

_LOOK_S = 1.0


@contextlib.contextmanager
def ends_in_time(at_once: threading.Event, exit_code: int, say: Callable[[], None]) -> Iterator[None]:
    """End this process `WORK_S` seconds after `at_once` was set, even if the block has ended by then.

    Args:
        at_once: asks for the end.
        exit_code: of the process, if it is ended here.
        say: called in a thread of its own if the block has not ended by then.
    """
    over = threading.Event()

    def watch() -> None:
        while not at_once.wait(_LOOK_S):
            if over.is_set():
                return
        time.sleep(WORK_S)
        speaker = threading.Thread(target=say, name="last-words", daemon=True)
        if not over.is_set():
            speaker.start()
        end_descendants()
        if speaker.ident is not None:
            speaker.join(SAY_S)
        os._exit(exit_code)

    threading.Thread(target=watch, name="last-resort", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def end_descendants() -> None:
    """Kill every process that this one started, directly or not; all are stopped first, so that none starts another."""
    own, deadline = own_identity(), time.monotonic() + KILL_S
    while True:
        stopped: set[Identity] = set()
        while found := descendants_of(own) - stopped:
            _send(found, signal.SIGSTOP)
            stopped |= found
        _send(stopped, signal.SIGKILL)
        left = deadline - time.monotonic()
        if not stopped or left <= 0:
            return
        wait_until_gone(stopped, left)


def _send(processes: set[Identity], number: signal.Signals) -> None:
    for each in processes:
        with contextlib.suppress(PermissionError):
            send_signal(each, number)
