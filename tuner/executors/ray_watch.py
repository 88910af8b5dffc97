"""Watch Ray's central processes for a driver that waits for them in a call of Ray.

Ray's core does not notice that its control store has ended: it waits for a minute and then aborts this process without
a message. No call ends that wait, so a thread ends this process before, with a message.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from tuner.errors import EXIT_OURS

GRACE_S = 10.0
"""How long a driver may go on without them while it connects to Ray and requests its workers."""
CALM_GRACE_S = 45.0
"""How long it may go on later, when it looks itself between its calls. Ray aborts it after 60 s."""
POLL_S = 0.5
MESSAGE = "tuner: Ray's control store or raylet ended, and Ray does not go on; run the same command again"


class Watch:
    """Gives up, in a thread, once the central processes have ended and nobody has ended the watch."""

    def __init__(
        self, runs: Callable[[], bool], give_up: Callable[[], None], grace_s: float = GRACE_S, poll_s: float = POLL_S
    ) -> None:
        """Begin.

        Args:
            runs: returns whether the central processes run.
            give_up: called once, in the thread.
            grace_s: seconds that the driver has left to end the watch; may be changed.
            poll_s: seconds between two looks.
        """
        self.grace_s = grace_s
        self._runs, self._give_up, self._poll_s = runs, give_up, poll_s
        self._over = threading.Event()
        threading.Thread(target=self._look, name="watch-ray", daemon=True).start()

    def _look(self) -> None:
        while self._runs():
            if self._over.wait(self._poll_s):
                return
        ended = time.monotonic()
        while time.monotonic() - ended < self.grace_s:
            if self._over.wait(self._poll_s):
                return
        self._give_up()

    def end(self) -> None:
        """End the watch."""
        self._over.set()


def end_this_process(clean_up: Callable[[], None]) -> None:
    """Clean up and end this process with a message, as Ray would do without either."""
    try:
        clean_up()
    finally:
        print(MESSAGE, file=sys.stderr, flush=True)
        os._exit(EXIT_OURS)
