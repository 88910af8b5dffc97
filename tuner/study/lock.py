"""The lock that keeps two processes from running one study at the same time; it is in the study's database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from storage import locks
from tuner.cancellation import CancelToken
from tuner.errors import InfrastructureError, SettingError

_POLL_S = 0.5


class StudyIsRunning(SettingError):
    """Another process runs the study."""

    def __init__(self, name: str, holder: locks.Holder) -> None:
        super().__init__("study", name, f"{holder} is running this study", "wait for it, or choose another name")


def refuse_running(url: str, name: str) -> None:
    """Refuse a study that another process runs; creates nothing.

    Args:
        url: the study's database.
        name: the study's name.

    Raises:
        StudyIsRunning: when another process runs it.
    """
    holder = locks.study_lock(url, name).holder()
    if holder is not None:
        raise StudyIsRunning(name, holder)


def wait_until_free(url: str, name: str, seconds: float, stop: CancelToken) -> None:
    """Wait until no other process runs the study, or until `stop`; creates nothing.

    Args:
        url: the study's database.
        name: the study's name.
        seconds: the longest wait.
        stop: ends the wait at once, without an error.

    Raises:
        InfrastructureError: when another process still runs it at the end of the wait.
    """
    lock = locks.study_lock(url, name)
    until = time.monotonic() + seconds
    while (holder := lock.holder()) is not None and not stop.is_set():
        left = until - time.monotonic()
        if left <= 0:
            raise InfrastructureError(
                f"{holder} is running the study {name!r}, and did not end within {seconds:.0f} s; end it, and resume"
            )
        stop.wait(min(_POLL_S, left))


@contextmanager
def study_lock(url: str, name: str) -> Iterator[locks.Lock]:
    """Hold the study for this process; arguments as for `refuse_running`.

    Raises:
        StudyIsRunning: when another process runs the study.
    """
    lock = locks.study_lock(url, name)
    try:
        lock.take()
    except locks.LockHeld as error:
        raise StudyIsRunning(name, error.holder) from None
    try:
        yield lock
    finally:
        lock.release()
