"""Tables and command lines of the benchmarks."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import benchmarks
from benchmarks.command_line import documented_parser, environment_variables
from benchmarks.text_table import MISSING, number_text, print_table

COMMANDS = (
    "benchmarks.cold_start",
    "benchmarks.search.__main__",
    "benchmarks.search.ask_latency",
    "benchmarks.search.flag_effects",
    "benchmarks.loadgen.client_agreement",
    "benchmarks.loadgen.lookup",
    "benchmarks.loadgen.traffic",
    "benchmarks.cost.overhead",
    "benchmarks.energy",
    "benchmarks.service.fairness",
    "benchmarks.service.pages",
    "benchmarks.service.streams",
    "benchmarks.service.studies",
)


def test_columns_are_aligned_below_a_wrapped_caption(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("word " * 40, ["name", "value"], [["a", "1"], ["longer", "23"]])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 120 for line in lines)
    assert lines[-3:] == ["  name    value", "  a           1", "  longer     23"]


def test_a_missing_number_is_a_dash() -> None:
    assert (number_text(None, 2), number_text(1.005, 1)) == (MISSING, "1.0")


def test_help_shows_the_docstring() -> None:
    text = documented_parser("First line.\n\n    python -m something\n\nThe rest.").format_help()
    assert "First line." in text
    assert text.rstrip().endswith("python -m something\n\nThe rest.")


def test_variables_need_an_equals_sign() -> None:
    assert environment_variables(["A=1", "B=x=y"]) == {"A": "1", "B": "x=y"}
    with pytest.raises(SystemExit, match="--env A: not NAME=VALUE"):
        environment_variables(["A"])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_docstring_of_every_benchmark_has_its_command(command: str) -> None:
    doc = importlib.import_module(command).__doc__ or ""
    assert f"python -m {command.removesuffix('.__main__')} " in doc


def test_the_readme_lists_every_benchmark() -> None:
    table = (Path(benchmarks.__file__).parent / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\| `(benchmarks[\w.]*)", table))
    names = ("accuracy", "calibrate", "left_out", "several_gpus", "speed")
    simulator = {f"benchmarks.simulator.{name}" for name in names}
    assert listed == {command.removesuffix(".__main__") for command in COMMANDS} | simulator
    for report in re.findall(r"\((\.\./docs/[^)#]+)[^)]*\)", table):
        assert (Path(benchmarks.__file__).parent / report).exists(), report
