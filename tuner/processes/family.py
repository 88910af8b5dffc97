"""Find and end a process family: one started process and everything that it started.

A process belongs to the family if it is in the leader's group or session, has the leader's mark in its environment, is
a descendant of a member, or was seen as a member before. Children inherit the mark, also those that call setsid and
lose their parent. /proc shows the environment that a program was executed with, so the forks of a forked server have
no mark; they die with the process that forked them (`tuner/engines/vllm/resident/helper.py`). A process may also
overwrite its environment, as vLLM's children and Ray's agents do when they rename themselves; such a process is a
member, too, if it has a file of the family's own folder open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tuner.processes import shared_memory
from tuner.processes.identity import (
    Identity,
    ProcessState,
    read_process_table,
    send_signal,
    wait_until_gone,
)

MARK = "TUNER_PROCESS_ID"
"""The environment variable that marks a started process and everything that it starts."""

NO_LEADER = Identity(2**31 - 1, 0)
"""The leader of a family that has none, whose members are found by their mark: no process has this id."""

AFTER_LEADER_S = 1.0
"""How long members may take to end by SIGTERM once their leader has ended."""

KILL_S = 30.0
"""How long killed members may take to disappear. SIGKILL cannot be refused, but a busy machine takes seconds to unmap
tens of GB."""


@dataclass(frozen=True)
class FamilyEnding:
    """The result of ending a family: the processes that ended and those that survived (normally none)."""

    ended: frozenset[Identity]
    survivors: frozenset[Identity]


def has_mark(pid: int, mark: str) -> bool | None:
    """Return whether the process was started with the mark; None if its environment does not show that.

    The environment is hidden for another user's process, empty for one that was started without one, and blanked from
    its beginning by `setproctitle`, which vLLM's children call.
    """
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    if f"{MARK}={mark}".encode() in entries:
        return True
    return False if b"=" in entries[0] else None


def has_open_file(pid: int, folder: Path) -> bool:
    """Return whether the process has a file below the folder open; False for another user's process."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(f"{folder}/"):
                return True
    return False


def find_family(
    leader: Identity, mark: str, members_seen: Iterable[Identity] = (), folder: Path | None = None
) -> set[Identity]:
    """Return every living process of the family, without the calling process.

    Everyone in the leader's group or session is a member as long as the leader is in the process table. If it is gone,
    those whose environment provably lacks the mark are not members: the id may have been recycled in between.

    Args:
        leader: the process that was started.
        mark: the value of `MARK` in its environment.
        members_seen: processes that were members at an earlier look.
        folder: the family's own; a process with a file of it open and without readable environment is a member.
    """
    processes = read_process_table()
    current = processes.get(leader.pid)
    leader_listed = current is not None and current.identity == leader
    recycled = current is not None and not leader_listed
    members: set[int] = {identity.pid for identity in members_seen if _is_listed(processes, identity)}
    if leader_listed:
        members.add(leader.pid)
    for pid, state in processes.items():
        inside = not recycled and leader.pid in (state.session, state.group)
        if (inside and leader_listed) or pid in members:
            members.add(pid)
            continue
        marked = has_mark(pid, mark)
        unknown = marked is None and (inside or (folder is not None and has_open_file(pid, folder)))
        if marked or unknown:
            members.add(pid)
    _add_descendants(members, processes)
    members.discard(os.getpid())
    return {processes[pid].identity for pid in members if processes[pid].alive}


def _is_listed(processes: dict[int, ProcessState], identity: Identity) -> bool:
    state = processes.get(identity.pid)
    return state is not None and state.identity == identity


def _add_descendants(members: set[int], processes: dict[int, ProcessState]) -> None:
    grown = True
    while grown:
        children = {
            pid
            for pid, state in processes.items()
            if state.parent in members and state.identity.started >= processes[state.parent].identity.started
        }
        grown = not children <= members
        members |= children


def end_family(
    find_members: Callable[[], set[Identity]], leader: Identity, grace_s: float, segments_seen: Iterable[Path] = ()
) -> FamilyEnding:
    """End a family: SIGTERM to all, at most `grace_s` seconds for the leader, then SIGKILL to all.

    Once the leader has ended, the others have at most `AFTER_LEADER_S` seconds. `find_members` is called until it
    returns an empty set, so that processes that were started in the meantime are ended, too. Shared memory that members
    have mapped, now or at an earlier look (`segments_seen`), is removed unless another process has it mapped.
    """
    left = find_members()
    everyone = set(left)
    segments = {*segments_seen, *shared_memory.mapped_segments(member.pid for member in left)}
    if grace_s > 0:
        for member in left:
            send_signal(member, signal.SIGTERM)
        wait_until_gone({leader} & left, grace_s)
        wait_until_gone(left, min(grace_s, AFTER_LEADER_S))
    deadline = time.monotonic() + KILL_S
    while (left := find_members()) and time.monotonic() < deadline:
        everyone |= left
        segments |= shared_memory.mapped_segments(member.pid for member in left)
        leader_first = sorted(left, key=lambda member: member != leader)  # a leader may react to the end of children
        for member in leader_first:
            send_signal(member, signal.SIGKILL)
        wait_until_gone(left, AFTER_LEADER_S)
    shared_memory.remove_unused(segments)
    return FamilyEnding(frozenset(everyone - left), frozenset(left))
