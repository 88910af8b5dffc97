"""Find, identify and end a process family: a started process and all that it started, with its shared memory.

A process is identified by its id and its start time, so that a process that gets a recycled id is never mistaken for
the one that had the id before. Names are never used: vLLM renames its children.

vLLM's processes communicate through segments in /dev/shm (`psm_…`, 160–250 MB each) and semaphores (`sem.mp-…`) of
Python's `multiprocessing`, which removes them at a regular exit but not after SIGKILL. PyTorch (`torch_…`) and NCCL
(`nccl-…`) do the same. Other files there, such as a model's weights, are never removed.

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
from typing import NamedTuple

from tuner.cancellation import STOP_S, CancelToken

_POLL_S = 0.02


class Identity(NamedTuple):
    """What identifies a process even after its id was recycled.

    The id, and the start time in clock ticks since boot (field 22 of /proc/PID/stat).
    """

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


def wait_until_gone(identities: Iterable[Identity], timeout_s: float, cancelled: CancelToken | None = None) -> bool:
    """Wait at most `timeout_s` seconds until none of the processes is alive; return whether none is.

    Once `cancelled` is set, the wait lasts at most `STOP_S` seconds longer.
    """
    deadline = time.monotonic() + timeout_s
    left = [identity for identity in identities if is_alive(identity)]
    while left and time.monotonic() < deadline:
        if cancelled is not None and cancelled.is_set():
            deadline, cancelled = min(deadline, time.monotonic() + STOP_S), None
        time.sleep(_POLL_S)
        left = [identity for identity in left if is_alive(identity)]
    return not left


SHARED_MEMORY_FOLDER = Path("/dev/shm")
_SEGMENT_PREFIXES = tuple(f"{SHARED_MEMORY_FOLDER}/{prefix}" for prefix in ("psm_", "sem.mp-", "torch_", "nccl-"))


def mapped_segments(pids: Iterable[int]) -> set[Path]:
    """Return the segments and semaphores that these processes have mapped."""
    segments: set[Path] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                path = "/" + line.partition("/")[2]
                if path.startswith(_SEGMENT_PREFIXES) and not path.endswith(" (deleted)"):
                    segments.add(Path(path))
    return segments


def remove_unused(segments: Iterable[Path]) -> None:
    """Remove those of the segments that exist and that no process has mapped."""
    left = {segment for segment in segments if segment.exists()}
    if not left:
        return
    left -= mapped_segments(int(name) for name in os.listdir("/proc") if name.isdigit())
    for segment in left:
        with contextlib.suppress(OSError):
            segment.unlink()


MARK = "TUNER_PROCESS_ID"
"""The environment variable that marks a started process and everything that it starts."""

NO_LEADER = Identity(2**31 - 1, 0)
"""The leader of a family that has none, whose members are found by their mark: no process has this id."""

AFTER_LEADER_S = 1.0
"""Seconds that members have to end after SIGTERM, once their leader has ended."""

KILL_S = 30.0
"""Seconds that killed members have to disappear. SIGKILL cannot be refused, but a busy machine takes seconds to unmap
tens of GB."""


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


def descendants_of(identity: Identity) -> set[Identity]:
    """Return the living processes that a process started, directly or not, as far as their parents live."""
    processes = read_process_table()
    members = {identity.pid}
    _add_descendants(members, processes)
    return {processes[pid].identity for pid in members - {identity.pid} if processes[pid].alive}


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
    find_members: Callable[[], set[Identity]],
    leader: Identity,
    grace_s: float,
    segments_seen: Iterable[Path] = (),
    cancelled: CancelToken | None = None,
) -> set[Identity]:
    """End a family: SIGTERM to all, `grace_s` seconds for the leader at most, SIGKILL to all; return the survivors.

    Once `cancelled` is set, the leader has at most `STOP_S` seconds. Once it has ended, the others have at most
    `AFTER_LEADER_S` seconds; after a leader that did not end in time, none. `find_members` is called until it
    returns an empty set, so that processes that were started in the meantime are ended, too. Shared memory that members
    have mapped, now or at an earlier look (`segments_seen`), is removed unless another process has it mapped.
    """
    left = find_members()
    segments = {*segments_seen, *mapped_segments(member.pid for member in left)}
    if grace_s > 0:
        for member in left:
            send_signal(member, signal.SIGTERM)
        if wait_until_gone({leader} & left, grace_s, cancelled):
            wait_until_gone(left, min(grace_s, AFTER_LEADER_S), cancelled)
    deadline = time.monotonic() + KILL_S
    while (left := find_members()) and time.monotonic() < deadline:
        segments |= mapped_segments(member.pid for member in left)
        leader_first = sorted(left, key=lambda member: member != leader)  # a leader may react to the end of children
        for member in leader_first:
            send_signal(member, signal.SIGKILL)
        wait_until_gone(left, AFTER_LEADER_S)
    remove_unused(segments)
    return left
