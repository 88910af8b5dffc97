"""End the processes that a worker started once the worker or the driver has ended. Standard library only.

It also removes the temporary folders of processes that have ended.

    python -I -S watchdog_program.py FOLDER PIPE PID:STARTED [PID:STARTED]

FOLDER has the process records. PIPE is the reading end of a pipe whose writing end closes when the worker ends. The
first process is the worker, the second the driver. The watchdog ignores the signals that end the processes of a
terminal or a service, because it is needed after them. It ends by itself once the worker and the processes that the
worker started have ended.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from tuner.cancellation import STOP_S
from tuner.processes.family import Identity, is_alive
from tuner.processes.records import reap_orphans_of

POLL_S = 0.2
"""Seconds between two looks at the records."""

LIMIT_S = 120.0
"""Most seconds for which the watchdog cleans up after the end of the driver, while the worker still runs.

Ray ends such a worker within seconds."""


def wait_for_owner_end(folder: Path, pipe: int, owners: list[Identity]) -> None:
    """Wait until one of the owners has ended, or the worker no longer uses its records."""
    poll = select.poll()
    poll.register(pipe, 0)  # 0: only POLLHUP, which says that the writing end is closed
    for owner in owners:
        try:
            poll.register(os.pidfd_open(owner.pid), select.POLLIN)
        except ProcessLookupError:
            return
    while all(is_alive(owner) for owner in owners):
        if all(descriptor == pipe for descriptor, _ in poll.poll()):
            poll.unregister(pipe)
            if not reap_orphans_of(folder, owners[0], STOP_S):
                return


def main() -> None:
    """Run the program."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder, pipe = Path(sys.argv[1]), int(sys.argv[2])
    owners = [Identity(*map(int, word.split(":"))) for word in sys.argv[3:]]
    wait_for_owner_end(folder, pipe, owners)
    deadline = time.monotonic() + LIMIT_S
    while reap_orphans_of(folder, owners[0], STOP_S) or (
        is_alive(owners[0]) and not all(is_alive(owner) for owner in owners) and time.monotonic() < deadline
    ):
        time.sleep(POLL_S)
    from tuner import scratch  # only now: its imports would take 2 MB of a waiting watchdog

    scratch.remove_stale()


if __name__ == "__main__":
    main()
