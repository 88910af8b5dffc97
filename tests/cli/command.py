"""Run the command line as a user does, in this process or in a new one."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from tuner.cli.help import commands_in
from tuner.cli.main import app, main
from tuner.errors import EXIT_INCONCLUSIVE, EXIT_OURS

STALL_S = 240.0
"""A command without progress for this long hangs; imports take less, even on a machine with ten busy processes."""

VERDICTS = (0, EXIT_OURS, EXIT_INCONCLUSIVE)
"""The exit codes of a script that verified itself; a busy machine may be slower than in the study, or too noisy."""

PROGRESS = ("*.db*", "tuner_study/*.db*", "quality/*/server.log")
"""Files that change while a command makes progress."""

_built = cache(typer.main.get_command)
"""The commands and their options, which Typer builds for each run: longer than most runs take."""

TREE: Any = _built(app)
"""The group of all commands."""

PATHS: dict[str, Any] = dict(commands_in(TREE))
"""Every command and group by its words after `tuner`."""


@dataclass(frozen=True)
class CommandOutput:
    code: int
    out: str
    err: str


def run_here(folder: Path, *argv: str) -> CommandOutput:
    """Run `tuner ARGV…` in this process, in `folder`."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TUNER_DEBUG", "")
        patch.setattr(typer.main, "get_command", _built)
        patch.setattr(sys, "argv", ["tuner", *argv])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return CommandOutput(ended.value.code, out.getvalue(), err.getvalue())


def run_apart(folder: Path, *argv: str, **environment: str) -> CommandOutput:
    """Run `tuner ARGV…` in a process of its own, in `folder`, for as long as it makes progress."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "tuner.cli.main", *argv],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        try:
            _wait_while_progressing(process, folder, [out.fileno(), err.fileno()])
        finally:
            process.kill()
            process.wait()
        texts = [os.pread(file.fileno(), 1 << 24, 0).decode() for file in (out, err)]
    return CommandOutput(process.returncode, *texts)


def _wait_while_progressing(process: subprocess.Popen[bytes], folder: Path, outputs: list[int]) -> None:
    """Wait for a process; fail when neither its output, nor a database or a server's log changed for `STALL_S`."""
    seen, since = None, time.monotonic()
    while process.poll() is None:
        files = sorted(file for pattern in PROGRESS for file in folder.glob(pattern))
        now = [os.fstat(file).st_size for file in outputs], [_changed(file) for file in files]
        if now != seen:
            seen, since = now, time.monotonic()
        assert time.monotonic() - since < STALL_S, f"no progress for {STALL_S:.0f} s; output so far: {now[0]} bytes"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)


def _changed(file: Path) -> int:
    """Return when a file last changed; 0 if it is gone."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def ran(folder: Path, *argv: str) -> CommandOutput:
    """Run a command that succeeds."""
    printed = run_here(folder, *argv)
    assert printed.code == 0, printed.err
    return printed


def one_line(printed: CommandOutput, *parts: str) -> None:
    """Assert exit code 2 and one line that holds `parts`."""
    assert (printed.code, printed.out, len(printed.err.splitlines())) == (2, "", 1), printed.err
    assert [part for part in ("tuner: ", *parts) if part not in printed.err] == [], printed.err


def refused(printed: CommandOutput, folder: Path, *parts: str) -> None:
    """Assert one line that holds `parts`, exit code 2, and an empty folder."""
    one_line(printed, *parts)
    assert everything_in(folder) == []
