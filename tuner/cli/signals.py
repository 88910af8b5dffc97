"""Ctrl-C and other signals as a request to stop."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Set the event at the first Ctrl-C, SIGTERM or hang-up; end the command at once at a second Ctrl-C.

    A hang-up that the caller ignores, as `nohup` does, stays ignored.
    """
    stop = threading.Event()

    def request_stop(number: int, _: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()
        with suppress(OSError):  # after a hang-up there is no terminal to write to
            print("stopping: the study is saved; Ctrl-C again ends at once", file=sys.stderr, flush=True)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, request_stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def remembered_interrupts() -> Iterator[threading.Event]:
    """Set the event at Ctrl-C, too: Python drops its KeyboardInterrupt in a finalizer, or while an import is locked."""
    interrupted = threading.Event()

    def interrupt(number: int, _: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that the command ends the programs that it started."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
