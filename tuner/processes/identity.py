"""Identify single processes in Linux's /proc, and send signals to exactly one of them.

A process is identified by its id and its start time, so that a process that gets a recycled id is never mistaken for
the one that had the id before. Names are never used: vLLM renames its children.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_POLL_S = 0.02


class Identity(NamedTuple):
    """One process for good: its id and its start time in clock ticks since boot (field 22 of /proc/PID/stat)."""

    pid: int
    started: int


@dataclass(frozen=True)
class ProcessState:
    """One row of the process table: the identity, the ids of parent, group and session, and whether it runs.

    A zombie is in the table and not alive. A zombie leader whose other threads still run is alive: it holds its memory.
    """

    identity: Identity
    parent: int
    group: int
    session: int
    alive: bool


def read_process(pid: int) -> ProcessState | None:
    """Return the state of the process that has the id now; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    state, threads = fields[0], int(fields[17])
    alive = state not in (b"Z", b"X") or (state == b"Z" and threads > 1)
    return ProcessState(Identity(pid, int(fields[19])), int(fields[1]), int(fields[2]), int(fields[3]), alive)


def read_process_table() -> dict[int, ProcessState]:
    """Return the state of every process by its id, zombies included."""
    states = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {state.identity.pid: state for state in states if state is not None}


def is_alive(identity: Identity) -> bool:
    """Return True if exactly this process still runs."""
    state = read_process(identity.pid)
    return state is not None and state.alive and state.identity == identity


def own_identity() -> Identity:
    """Return the identity of the calling process.

    Raises:
        OSError: if /proc does not show the process.
    """
    state = read_process(os.getpid())
    if state is None:
        raise OSError("/proc does not show this process; the tuner needs Linux's /proc")
    return state.identity


def send_signal(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; return False if it no longer exists.

    The handle is opened before the start time is compared, so the signal cannot reach a process that got the id later.

    Raises:
        PermissionError: if the process belongs to another user.
    """
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def wait_until_gone(identities: Iterable[Identity], timeout_s: float) -> bool:
    """Wait at most `timeout_s` seconds until none of the processes is alive; return whether none is."""
    deadline = time.monotonic() + timeout_s
    left = [identity for identity in identities if is_alive(identity)]
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = [identity for identity in left if is_alive(identity)]
    return not left
