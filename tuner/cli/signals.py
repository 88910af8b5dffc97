"""Ctrl-C and other signals as a request to stop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tuner.cancellation import LIMIT_S, Wishes
from tuner.errors import EXIT_INTERRUPTED
from tuner.processes.last_resort import ends_in_time


@contextmanager
def stop_on_signals(say: Callable[[], None] = lambda: None) -> Iterator[Wishes]:
    """Ask to stop at the first Ctrl-C or hang-up; end the command within `LIMIT_S` at SIGTERM and at a second Ctrl-C.

    A hang-up that the caller ignores, as `nohup` does, stays ignored.

    Args:
        say: prints the last words of a command that did not end by itself.
    """
    wishes = Wishes()

    def request_stop(number: int, _: object) -> None:
        again = wishes.stop.is_set()
        at_once = number == signal.SIGTERM or (again and number == signal.SIGINT)
        wishes.cancel() if at_once else wishes.stop.set()
        with suppress(OSError):  # after a hang-up there is no terminal to write to
            more = f"; it ends within {LIMIT_S:.0f} s" if at_once else "; Ctrl-C again ends at once"
            print(f"stopping: the study is saved{more}", file=sys.stderr, flush=True)
        if again and at_once:
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with ends_in_time(wishes.at_once, EXIT_INTERRUPTED, say), _handled(request_stop, *numbers):
        yield wishes


@contextmanager
def ends_at_interrupt(last_words: str) -> Iterator[None]:
    """End the process at Ctrl-C, for a command that has nothing to save and has started nothing.

    No KeyboardInterrupt is raised: Python drops one in a finalizer or in an import, and a repeated one may come while
    the first one is handled.

    Args:
        last_words: a line for standard error.
    """

    def end(number: int, _: object) -> None:
        with suppress(OSError):  # without a terminal there is nobody to tell
            os.write(2, f"{last_words}\n".encode())
        os._exit(EXIT_INTERRUPTED)

    sys.stdout.flush()
    with _handled(end, signal.SIGINT):
        yield


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
