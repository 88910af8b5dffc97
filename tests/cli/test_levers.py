"""What would help a study that keeps the defaults: shown by every command, and its command runs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.command import run_here

STUDY = ("optimize", "--engine", "simulated", "--prompts", "40", "--users", "20", "--plain")
WORSE = '{"cudagraph_mode": "eager"}'


@pytest.fixture
def study(tmp_path: Path, without_mlflow: None) -> Path:
    """A folder with a study that keeps the defaults, because its only other trial is slower."""
    printed = run_here(tmp_path, *STUDY, "--trials", "2", "--enqueue", WORSE, "--study", "kept")
    assert printed.code == 0, printed.err
    assert "keep the defaults" in printed.out
    assert "what would help, which this study could not try: predicted, not measured" in printed.out
    return tmp_path


def test_levers_are_shown_and_stored_and_the_command_of_the_first_measures_it(study: Path) -> None:
    levers = json.loads(run_here(study, "best", "--json").out)["levers"]
    assert (levers[0]["name"], levers[0]["provenance"]) == ("greedy decoding with suffix speculation", "simulated")
    for command in (("best",), ("show", "0")):
        lines = run_here(study, *command).out.splitlines()
        assert f"  {levers[0]['command']}" in lines  # whole, to be copied
    assert "what would help" not in run_here(study, "show", "1").out
    shown = run_here(study, "best").out
    assert "\nsimulate greedy decoding with suffix speculation:\n" in shown
    assert "\nmeasure " not in shown
    assert "to measure: the same on a machine with card and vLLM, without --gpu" in shown
    words = shlex.split(levers[0]["command"])
    printed = run_here(study, *words[1:])
    assert printed.code == 0, printed.err
    assert (study / "kept-try-greedy.sh").is_file()
    compared = json.loads(run_here(study, "compare", "kept#0", levers[0]["settings"]["study"], "--json").out)
    measured = compared["metrics"]["output_throughput"]["ratio"]
    assert measured == pytest.approx(levers[0]["metrics"]["output_throughput"], rel=0.2)


def test_a_study_without_a_search_has_no_levers(tmp_path: Path, without_mlflow: None) -> None:
    assert run_here(tmp_path, *STUDY, "--trials", "1").code == 0
    assert json.loads(run_here(tmp_path, "best", "--json").out)["levers"] == []
