"""The imports of the command at its start, and its help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import run_here
from tuner import __version__
from tuner.cli.main import app

HEAVY = (
    "alembic",
    "mlflow",
    "numpy",
    "optuna",
    "pandas",
    "pyarrow",
    "pydantic",
    "ray",
    "rich",
    "scipy",
    "sqlalchemy",
    "yaml",
)
PROBE = """
import contextlib, io, sys
from tuner.cli.main import app, main
names = [command.callback.__name__ for command in app.registered_commands]
for words in [], *([name] for name in names):
    sys.argv = ["tuner", *words, "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    print(*words, *({name.split(".")[0] for name in sys.modules} & set(HEAVY)))
"""
COMMANDS = [str(command.name) for command in app.registered_commands]


def test_no_help_imports_anything_heavy() -> None:
    """Typer reads the options of a command with pydantic."""
    code = f"HEAVY = {HEAVY!r}{PROBE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    group, *commands = done.stdout.splitlines()
    assert group == ""
    assert commands == [f"{name} pydantic" for name in COMMANDS]


def test_every_command_is_there() -> None:
    wanted = {"optimize", "trials", "best", "show", "export", "sync", "ui", "space", "doctor"}
    wanted |= {"capacity", "load", "tradeoff", "requests", "simulate"}
    assert wanted <= {*COMMANDS}


def test_without_a_command_the_help_is_shown(tmp_path: Path) -> None:
    output = run_here(tmp_path)
    assert (output.code, output.err) == (2, "")
    assert output.out.startswith("Usage: tuner ")
    assert "\n  optimize " in output.out


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_h_is_help(tmp_path: Path, command: str | None) -> None:
    words = [command] if command else []
    output = run_here(tmp_path, *words, "-h")
    assert (output.code, output.err) == (0, "")
    assert output.out.startswith(f"Usage: tuner {command or '[OPTIONS]'} ")
    assert output == run_here(tmp_path, *words, "--help")


def test_the_version_is_printed(tmp_path: Path) -> None:
    output = run_here(tmp_path, "--version")
    assert (output.code, output.out, output.err) == (0, f"tuner {__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(tmp_path: Path, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TUNER_COMPLETE", f"complete_{shell}")
    typed = {"COMP_WORDS": "tuner pre", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "tuner pre"}
    for name, value in {**typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}.items():
        monkeypatch.setenv(name, value)
    assert "presets" in run_here(tmp_path).out
