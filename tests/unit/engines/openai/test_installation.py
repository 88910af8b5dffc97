"""The program of a command and its version."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import psutil
import pytest

from tuner.engines.openai import engine
from tuner.engines.openai.engine import UNKNOWN, find_program, version_of
from tuner.errors import SettingError


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def ends(number: int) -> bool:
    """Wait up to a minute; return whether a process is gone, or a zombie whose new parent has not reaped it yet."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(number)
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(0.05)
    return True


@pytest.mark.parametrize(
    ("body", "version"),
    [
        ("echo 'serve 1.2.3 (abc)'", "1.2.3"),
        ("echo 0.25.1.post1+cpu", "0.25.1.post1+cpu"),
        ("echo 'version: 6711 (a1b2c3d)' >&2", "6711"),
        ("echo 'no number'", UNKNOWN),
        ("echo 'unknown option of 1.2.3' && exit 2", UNKNOWN),
    ],
)
def test_the_version_is_what_the_program_prints(tmp_path: Path, body: str, version: str) -> None:
    assert version_of(script(tmp_path / "serve", body)) == version


def test_a_program_that_starts_a_server_instead_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ANSWER_S", 0.5)
    children = tmp_path / "children"
    program = script(tmp_path / "serve", f"sleep 600 & echo $! >{children}; wait")
    assert version_of(program) == UNKNOWN
    assert ends(int(children.read_text()))


def test_an_interpreter_is_not_asked(tmp_path: Path) -> None:
    assert version_of(Path(sys.executable)) == UNKNOWN
    assert version_of(script(tmp_path / "bash", "echo 5.2.15")) == UNKNOWN


def test_a_program_is_found_by_its_name_or_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = script(tmp_path / "serve", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert find_program("serve") == find_program("./serve") == made


@pytest.mark.parametrize(
    ("name", "rule"),
    [("nothing", "there is no such program"), ("./plain", "the file is not executable"), ("./a b", "rename it, or")],
)
def test_a_program_that_cannot_be_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, rule: str
) -> None:
    (tmp_path / "plain").write_text("")
    script(tmp_path / "a b", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=rule):
        find_program(name)
