"""The end of a process with the one that started it. Imports nothing slow, so that it can come first."""

from __future__ import annotations

import ctypes
import os
import signal

PARENT_VARIABLE = "TUNER_SYNC_PARENT"
"""The variable with the id of the process that starts this one."""

_PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, for example by `kill -9`; the next sync continues.

    If the parent has ended before this call, this process ends at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None and os.getppid() != int(parent):
        os._exit(1)
