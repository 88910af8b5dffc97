"""docs/seeds.md against the repository: tests, options, parameters and names that it mentions exist."""

import re

import typer

from tests.pages import ROOT
from tuner.cli.main import app

PAGE = ROOT / "docs" / "seeds.md"
GROUP = typer.main.get_command(app)
STATES = {"works", "never run on hardware", "open"}
_CODE = re.compile(r"`([^`]+)`")


def rows() -> list[list[str]]:
    """Return the cells of each row of the four tables of items."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == 4 and row[1] in STATES]


def section(key: str) -> set[str]:
    """Return the names below a top-level key of every shipped space."""
    names: set[str] = set()
    for path in sorted((ROOT / "search_spaces").glob("*/*.yaml")):
        for block in re.findall(rf"^{key}:\n((?:(?:  .*)?\n)+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            names |= set(re.findall(r"^  ([\w.-]+):", block, re.MULTILINE))
    return names


def test_every_row_has_a_known_state_and_evidence() -> None:
    text = PAGE.read_text(encoding="utf-8")
    data = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 5]
    assert len(rows()) == len(data) - text.count("| what the document says |") > 75
    assert [row[0] for row in rows() if row[1] != "open" and not _CODE.findall(row[3])] == []
    assert [row[0] for row in rows() if len(row[2]) < 5] == []


def test_named_test_files_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 20
    assert sorted(path for path in named if not (ROOT / path).is_file()) == []


def test_commands_and_their_options_exist() -> None:
    wrong = []
    for code in _CODE.findall(PAGE.read_text(encoding="utf-8")):
        if not code.startswith("tuner "):
            continue
        name, *words = code.split()[1:]
        command = GROUP.commands.get(name)  # type: ignore[attr-defined]
        options = {option for parameter in command.params for option in parameter.opts} if command else set()
        wrong += (
            [code] if command is None else [code for word in words if word.startswith("--") and word not in options]
        )
    assert wrong == []


def test_parameters_and_names_exist() -> None:
    """A word with only letters, digits and `_` is a parameter; with `-` a named configuration or a preset."""
    parameters, named = section("parameters"), section("named")
    presets = {path.stem for path in (ROOT / "tuner" / "workloads" / "presets").glob("*.yaml")}
    assert "max_num_seqs" in parameters
    assert "eager-ngram" in named
    codes = [code for row in rows() for code in _CODE.findall(row[2])]
    words = [code for code in codes if re.fullmatch(r"[a-z0-9_]+", code) and code not in {"custom_ops", "pass_config"}]
    names = [code for code in codes if re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)+", code)]
    assert len(words) > 25
    assert sorted(set(words) - parameters) == []
    assert sorted(set(names) - named - presets) == []
