"""Running the command line as a user does, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tuner.cli.main import main


@dataclass(frozen=True)
class Said:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str


def run_here(folder: Path, *argv: str) -> Said:
    """Run `tuner ARGV…` in this process, in `folder`."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TUNER_DEBUG", "")
        patch.setattr(sys, "argv", ["tuner", *argv])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return Said(ended.value.code, out.getvalue(), err.getvalue())


def run_apart(folder: Path, *argv: str, timeout_s: float = 1500.0, **environment: str) -> Said:
    """Run `tuner ARGV…` in a process of its own, in `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "tuner.cli.main", *argv],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def everything_in(folder: Path) -> list[str]:
    """Return every path below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused(said: Said, folder: Path, *parts: str) -> None:
    """Assert one line that holds `parts`, exit code 2, and an empty folder."""
    assert said.code == 2, said.err
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert [part for part in ("tuner: ", *parts) if part not in said.err] == [], said.err
    assert everything_in(folder) == []
