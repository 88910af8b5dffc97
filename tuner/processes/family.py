"""Processes as Linux's /proc shows them: who is whose, who lives, and how a family of processes is ended for good.

A process is identified by its id and its start time, so that a recycled id is never taken for the process that had it
before. A family is what one started process has brought into the world. It is recognised by any of: its group or
session, the mark in its environment (children inherit it, also those that call setsid and lose their parent), descent,
and identities seen earlier. A fork shows the environment that its program was executed with, so the forks of a forked
server have no mark; they die with whoever forked them (`tuner/engines/vllm/resident/helper.py`). Names are never used:
vLLM renames its children, which may also overwrite their environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tuner.processes import shared_memory

MARK = "TUNER_PROCESS_ID"
"""The environment variable that marks everything a started process starts in turn."""

POLL_S = 0.02
AFTER_LEADER_S = 1.0
KILL_S = 5.0


class Identity(NamedTuple):
    """One process for good: its id and its start time in clock ticks since boot (field 22 of /proc/PID/stat)."""

    pid: int
    started: int


@dataclass(frozen=True)
class Seen:
    """One line of the process table."""

    identity: Identity
    parent: int
    group: int
    session: int
    alive: bool


@dataclass(frozen=True)
class FamilyEnding:
    """What came of ending a family: who was ended and who is left (normally nobody)."""

    ended: frozenset[Identity]
    survivors: frozenset[Identity]


def look(pid: int) -> Seen | None:
    """Return the process that has the id now; None if there is none.

    A zombie is in the table and not alive. A zombie leader whose other threads still run is alive: its memory is held.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    state, threads = fields[0], int(fields[17])
    alive = state not in (b"Z", b"X") or (state == b"Z" and threads > 1)
    return Seen(Identity(pid, int(fields[19])), int(fields[1]), int(fields[2]), int(fields[3]), alive)


def table() -> dict[int, Seen]:
    """Return every process by its id, zombies included."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {seen.identity.pid: seen for seen in found if seen is not None}


def is_alive(identity: Identity) -> bool:
    """Return True if exactly this process still runs."""
    seen = look(identity.pid)
    return seen is not None and seen.alive and seen.identity == identity


def myself() -> Identity:
    """Return the identity of the calling process."""
    seen = look(os.getpid())
    if seen is None:
        raise OSError("/proc does not show this process; the tuner needs Linux's /proc")
    return seen.identity


def carries_mark(pid: int, mark: str) -> bool | None:
    """Return whether the process was started with the mark; None if its environment cannot be told.

    It cannot be told for another user's process, for one started with an empty environment, and for one that wrote over
    its environment: `setproctitle`, and so vLLM's children, blank it from its beginning.
    """
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    if f"{MARK}={mark}".encode() in entries:
        return True
    return False if b"=" in entries[0] else None


def family(root: Identity, mark: str, known: Iterable[Identity] = ()) -> set[Identity]:
    """Return every living process of the family that `root` leads, without the calling process.

    The group counts as the family's as long as `root` is in the table, and so does a session that `root` may have made.
    If `root` is gone, its id may have been recycled as another's: a member then counts only if its environment does not
    speak against it.
    """
    processes = table()
    leader = processes.get(root.pid)
    leads = leader is not None and leader.identity == root
    recycled = leader is not None and not leads
    members: set[int] = {identity.pid for identity in known if _is(processes, identity)}
    if leads:
        members.add(root.pid)
    for pid, seen in processes.items():
        inside = not recycled and root.pid in (seen.session, seen.group)
        if (inside and leads) or pid in members:
            members.add(pid)
            continue
        marked = carries_mark(pid, mark)
        if marked or (inside and marked is None):
            members.add(pid)
    _add_children(members, processes)
    members.discard(os.getpid())
    return {processes[pid].identity for pid in members if processes[pid].alive}


def _is(processes: dict[int, Seen], identity: Identity) -> bool:
    seen = processes.get(identity.pid)
    return seen is not None and seen.identity == identity


def _add_children(members: set[int], processes: dict[int, Seen]) -> None:
    grown = True
    while grown:
        children = {
            pid
            for pid, seen in processes.items()
            if seen.parent in members and seen.identity.started >= processes[seen.parent].identity.started
        }
        grown = not children <= members
        members |= children


def send(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; return False if it is not there any more.

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


def wait_gone(members: Iterable[Identity], timeout_s: float) -> bool:
    """Wait until none of the processes lives, at most `timeout_s` seconds; return whether that is so."""
    deadline = time.monotonic() + timeout_s
    left = [member for member in members if is_alive(member)]
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = [member for member in left if is_alive(member)]
    return not left


def end(find: Callable[[], set[Identity]], leader: Identity, grace_s: float) -> FamilyEnding:
    """End the family that `find` lists: SIGTERM, at most `grace_s` seconds for the leader, then SIGKILL for all.

    Once the leader is gone the others get at most `AFTER_LEADER_S` more: nobody waits for them any more. `find` is
    asked again until it finds nobody, so that what was started in the meantime is ended, too. Shared memory that only
    they had mapped is removed.
    """
    left = find()
    everyone = set(left)
    segments = shared_memory.mapped(member.pid for member in left)
    if grace_s > 0:
        for member in left:
            send(member, signal.SIGTERM)
        wait_gone({leader} & left, grace_s)
        wait_gone(left, min(grace_s, AFTER_LEADER_S))
    deadline = time.monotonic() + KILL_S
    while (left := find()) and time.monotonic() < deadline:
        everyone |= left
        segments |= shared_memory.mapped(member.pid for member in left)
        leader_first = sorted(left, key=lambda member: member != leader)  # it may act on the end of its children
        for member in leader_first:
            send(member, signal.SIGKILL)
        wait_gone(left, AFTER_LEADER_S)
    shared_memory.remove_unused(segments)
    return FamilyEnding(frozenset(everyone - left), frozenset(left))
