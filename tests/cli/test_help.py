"""The help of every command: its width, the words for its values, its panels, and its defaults."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.cli.command import run_here
from tuner.cli.help import FIRST_WEEK
from tuner.cli.main import app

ROOT = Path(__file__).parents[2]
GROUP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = GROUP.commands
MANY = 12
"""Options from which the help has panels."""

NO_DEFAULT = {"--checkpoint", "--draft-model", "--env", "--secret", "--only", "--enqueue", "--learn-from"}
ONE_OF_THREE = {"--preset", "--workload", "--study"}
"""Options of `tuner load` of which exactly one is given."""


@functools.cache
def help_of(command: str) -> str:
    return run_here(ROOT, command, "--help-all" if "--help-all" in names(command) else "--help").out


def names(command: str) -> set[str]:
    return {name for option in options_of(command) for name in option.opts}


def options_of(command: str) -> list[Any]:
    return [each for each in COMMANDS[command].params if each.param_type_name == "option"]


def sections(text: str) -> dict[str, str]:
    _, *parts = re.split(r"^(\w[^\n]*):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def entries(section: str) -> dict[str, str]:
    """Return the text of each option in a section on one line, by the option's longest name."""
    found: dict[str, str] = {}
    for entry in re.split(r"^  (?=-)", section, flags=re.MULTILINE)[1:]:
        text = " ".join(entry.split())
        found[re.findall(r"--[a-z-]+", text)[0]] = text
    return found


def all_entries(text: str) -> dict[str, str]:
    return {name: entry for section in sections(text).values() for name, entry in entries(section).items()}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns(tmp_path: Path, command: str) -> None:
    out = run_here(tmp_path, *command.split(), "--help").out
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_the_list_of_commands_has_whole_sentences(tmp_path: Path) -> None:
    assert "..." not in run_here(tmp_path, "--help").out.replace("[ARGS]...", "")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_one_screen_of_100_columns(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = run_here(tmp_path, *command.split(), "--help").out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_the_help_shows_the_ten_commands_of_a_first_week_and_names_the_rest(tmp_path: Path) -> None:
    shown = run_here(tmp_path, "--help").out
    first = ["optimize", "capacity", "trials", "compare", "export", "report", "serve", "submit", "space", "doctor"]
    assert re.findall(r"^  ([a-z]+)  ", shown, re.MULTILINE) == first
    assert "--help-all  Show every command" in shown
    every = re.findall(r"^  ([a-z]+)  ", run_here(tmp_path, "--help-all").out, re.MULTILINE)
    assert sorted(every) == sorted(COMMANDS)


def test_the_help_of_optimize_shows_the_options_of_a_first_study_and_names_the_rest(tmp_path: Path) -> None:
    first = "--preset --trials --timeout --study --model --engine --gpu --workload --users --objective --slo --baseline"
    assert [*all_entries(run_here(tmp_path, "optimize", "--help").out)] == [*first.split(), "--help-all", "--help"]
    assert {"--repeats", "--warm-start", "--sglang", "--output"} <= {*all_entries(help_of("optimize"))}


def test_every_name_of_a_first_week_exists() -> None:
    for command, first in FIRST_WEEK.items():
        own = {parameter.name for parameter in (COMMANDS.get(command) or GROUP).params}
        assert first - own - (set() if command in COMMANDS else {*COMMANDS}) == set(), command


@pytest.mark.parametrize("command", COMMANDS)
def test_values_are_named_in_words(command: str) -> None:
    text = help_of(command)
    assert re.findall(r"<(?:str|int|float|bool|path|list|file|dir)\b|\brange>|list\[|<=x|x>=", text) == []
    for option in options_of(command):
        if not option.is_flag:
            assert f"{option.opts[0]} {option.metavar}" in text
            assert option.metavar == option.metavar.upper()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_a_panel(command: str) -> None:
    panels = sections(help_of(command))
    options = options_of(command)
    if len(options) < MANY:
        assert {*panels} <= {"Arguments", "Options"}
        return
    assert "Options" not in panels
    for option in options:
        assert max(option.opts, key=len) in entries(panels[option.rich_help_panel])


@pytest.mark.parametrize("command", COMMANDS)
def test_defaults_are_shown(command: str) -> None:
    text = all_entries(help_of(command))
    without = NO_DEFAULT | (ONE_OF_THREE if command == "load" else set())
    for option in options_of(command):
        name = max(option.opts, key=len)
        expected = not (option.is_flag and option.default is False) and name not in without
        assert ("default: " in text[name]) is expected, text[name]
        if expected and option.default not in (None, True):
            assert f"default: {option.default}" in text[name]


@pytest.mark.parametrize("command", COMMANDS)
def test_repeatable_is_said_once(command: str) -> None:
    text = all_entries(help_of(command))
    for option in options_of(command):
        name = max(option.opts, key=len)
        assert text[name].count("repeatable") == int(option.multiple), text[name]
