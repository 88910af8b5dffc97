"""Temporary folders of ended processes are removed; those of running ones are not."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tuner import scratch


def test_only_folders_of_ended_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    dead = tmp_path / f"tuner-test-{child.stdout.strip()}-abc"
    other_kind = tmp_path / f"tuner-else-{child.stdout.strip()}-abc"
    of_another_program = tmp_path / f"{child.stdout.strip()}-tuner-test-abc"
    for folder in (dead / "in", other_kind, of_another_program):
        folder.mkdir(parents=True)
    mine = scratch.new_folder("test")
    (mine / "file").write_text("x")
    again = scratch.new_folder("test")
    assert sorted(tmp_path.iterdir()) == sorted([of_another_program, mine, again])
    scratch.empty(mine)
    assert list(mine.iterdir()) == []
    scratch.remove(mine)
    assert not mine.exists()


def test_a_zombie_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", ""])
    folder = tmp_path / f"tuner-test-{child.pid}-abc"
    folder.mkdir()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    scratch.remove_stale()
    assert not folder.exists()
    child.wait()
