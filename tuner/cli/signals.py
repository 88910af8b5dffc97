"""Ctrl-C and other signals as a request to stop."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

AGAIN_S = 1.0
"""Seconds after which a Ctrl-C that had no effect is repeated."""


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
    with _handled(request_stop, *numbers):
        yield stop


@contextmanager
def repeated_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C and each second after it: Python drops one in a finalizer or in an import."""

    def interrupt(number: int, _: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        raise KeyboardInterrupt

    with _handled(interrupt, signal.SIGINT, signal.SIGALRM):
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that the command ends the programs that it started."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt, signal.SIGTERM):
        yield


@contextmanager
def _handled(handler: Callable[[int, object], None], *numbers: int) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
