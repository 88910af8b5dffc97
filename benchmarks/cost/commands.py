"""Runs a command to its end; no process that it started survives."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.processes.family import MARK, end_family, find_family
from tuner.processes.identity import Identity, read_process, send_signal, wait_until_gone

INTERRUPT_S = 60.0
"""How long an interrupted command may take to end."""
TAIL_LINES, TAIL_CHARACTERS = 15, 2000


@dataclass(frozen=True)
class FinishedCommand:
    """A command that ended.

    Attributes:
        begun: when it began, in seconds since 1970.
        wall_s: its wall-clock seconds.
        code: its exit code.
        lines: its stdout, with the seconds since its begin at which each line came.
        log: the file of its stderr and stdout.
    """

    begun: float
    wall_s: float
    code: int
    lines: list[tuple[float, str]]
    log: Path

    def tail(self) -> str:
        """Return the end of its stdout and of its log."""
        lines = "\n".join(line for _, line in self.lines[-TAIL_LINES:])
        return f"{lines}\n{self.log.read_text(errors='replace')[-TAIL_CHARACTERS:]}"


def run_command(argv: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path) -> FinishedCommand:
    """Run a command; all its processes have ended when this returns or raises.

    Args:
        argv: the command.
        environment: its environment.
        cwd: its working folder.
        log: the file for its output.
    """
    mark = uuid.uuid4().hex
    begun_at, begun = time.time(), time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        lines: list[tuple[float, str]] = []
        state = read_process(process.pid)
        assert state is not None  # the process table lists a child until its parent waits for it
        try:
            for line in process.stdout or ():
                lines.append((time.monotonic() - begun, line.rstrip("\n")))
            code = process.wait()
            wall_s = time.monotonic() - begun
        finally:
            _end_all(process, state.identity, mark)
    with log.open("a") as text:
        text.writelines(f"{at:8.1f} {line}\n" for at, line in lines)
    return FinishedCommand(begun_at, wall_s, code, lines, log)


def _end_all(process: subprocess.Popen[str], leader: Identity, mark: str) -> None:
    """Interrupt a command that still runs, as Ctrl-C does, and end every process that it started."""
    members: set[Identity] = set()

    def find_members() -> set[Identity]:
        members.update(find_family(leader, mark, members))
        return find_family(leader, mark, members)

    find_members()
    if send_signal(leader, signal.SIGINT):
        wait_until_gone({leader}, INTERRUPT_S)
    survivors = end_family(find_members, leader, 0).survivors
    process.wait()
    if survivors:
        print(f"processes {', '.join(str(each.pid) for each in survivors)} could not be ended", file=sys.stderr)


def unused_port() -> int:
    """Return a loopback port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tuner_executable() -> str:
    """Return the `tuner` command that is installed beside this Python.

    Raises:
        SystemExit: if it is not installed.
    """
    path = Path(sys.executable).with_name("tuner")
    if not path.is_file():
        raise SystemExit(f"{path}: not found; run this with the Python of the environment that has the tuner")
    return os.fspath(path)
