"""End what tests start with the process that runs them, also if it is killed.

The product's own watchdog does it: each process that the tests start inherits a mark in its environment, and a record
names the process of the tests as the owner of all that have the mark.
"""

import ctypes
import os
import signal
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from tuner.processes.family import MARK, NO_LEADER
from tuner.processes.records import ProcessRecords

PR_SET_PDEATHSIG = 1


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that run; in a container nobody may take the exit code of one that has ended."""
    left = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left


_kept: list[ProcessRecords] = []
"""The watchdog ends with its records' object, so that lives as long as this process."""


def end_with_this_process(folder: Path) -> None:
    """Let everything that this process starts from now on end with it.

    Args:
        folder: gets the record, and outlives this process.
    """
    os.environ[MARK] = uuid.uuid4().hex
    _kept.append(ProcessRecords(folder))
    _kept[-1].add(os.environ[MARK], NO_LEADER, None, (), "what the tests started")


def end_with_parent() -> None:
    """Kill this process when the thread that started it ends, as that of pytest does with its run."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
