"""The lock that keeps two processes from running one study at the same time; it is in the study's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from storage import locks
from tuner.errors import SettingError


def refuse_running(url: str, name: str) -> None:
    """Refuse a study that another process runs; creates nothing.

    Args:
        url: the study's database.
        name: the study's name.

    Raises:
        SettingError: when another process runs it.
    """
    holder = locks.study_lock(url, name).holder()
    if holder is not None:
        raise _refusal(name, holder)


@contextmanager
def study_lock(url: str, name: str) -> Iterator[locks.Lock]:
    """Hold the study for this process; arguments as for `refuse_running`.

    Raises:
        SettingError: when another process runs the study.
    """
    lock = locks.study_lock(url, name)
    try:
        lock.take()
    except locks.LockHeld as error:
        raise _refusal(name, error.holder) from None
    try:
        yield lock
    finally:
        lock.release()


def _refusal(name: str, holder: locks.Holder) -> SettingError:
    return SettingError("study", name, f"{holder} is running this study", "wait for it, or choose another name")
