"""Watch the control store while Ray starts.

`ray.init` asks the control store through Ray's core, which does not notice that it has ended: it waits for a minute, up
to three times, and then aborts this process without a message. No call ends that wait.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from tuner.errors import EXIT_OURS

GRACE_S = 15.0
"""How long the start may go on without its control store: Ray itself ends it when another part fails."""

POLL_S = 0.5
MESSAGE = "tuner: Ray's control store ended while Ray started, and Ray cannot go on; run the same command again"


@contextlib.contextmanager
def watched(
    runs: Callable[[], bool], give_up: Callable[[], None], grace_s: float = GRACE_S, poll_s: float = POLL_S
) -> Iterator[None]:
    """Give up if the control store has run and then has ended, and the block goes on.

    Args:
        runs: returns whether the control store runs.
        give_up: called once, in another thread.
        grace_s: seconds that the block has left to end by itself.
        poll_s: seconds between two looks.
    """
    over = threading.Event()

    def watch() -> None:
        while not runs():
            if over.wait(poll_s):
                return
        while runs():
            if over.wait(poll_s):
                return
        if not over.wait(grace_s):
            give_up()

    thread = threading.Thread(target=watch, name="control-store", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def end_this_process(clean_up: Callable[[], None]) -> None:
    """Clean up and end this process with a message, as Ray would do without either."""
    try:
        clean_up()
    finally:
        print(MESSAGE, file=sys.stderr, flush=True)
        os._exit(EXIT_OURS)
