"""The comparison with `vllm bench sweep serve`, and the table of the tuner's own cost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.cost.against_sweep import cost_data, print_costs
from benchmarks.cost.commands import run_command
from benchmarks.cost.overhead import CostFigure, print_figures
from benchmarks.cost.six_servers import (
    COMPILED,
    SIX,
    CommandCost,
    ConfigCost,
    SharedSetup,
    sweep_command,
    sweep_spans,
    tuner_command,
)
from tuner.processes.identity import read_process


@pytest.fixture
def setup(tmp_path: Path) -> SharedSetup:
    return SharedSetup(Path("/venv/bin/vllm"), Path("/model"), tmp_path, ("A=1",))


def test_both_commands_measure_the_same_configurations(setup: SharedSetup) -> None:
    sweep, tuner = sweep_command(setup, "six", SIX, 8000), tuner_command(setup, "six", SIX)
    assert (setup.folder / "serve-six.json").read_text().count("max_num_seqs") == len(SIX) == 6
    assert "--load-format dummy --max-model-len 1024" in sweep[sweep.index("--serve-cmd") + 1]
    assert tuner[-4:] == ["--load-format", "dummy", "--max-model-len", "1024"]
    assert tuner[tuner.index("--trials") + 1] == "6"
    compiled = tuner_command(setup, "primed", COMPILED)
    assert compiled[compiled.index("--trials") + 1 :][:3] == ["3", "--only", "max_num_seqs"]


def test_spans_are_read_from_the_output_of_the_sweep() -> None:
    lines = [(1.0, "[BEGIN SERVER]"), (5.0, "[BEGIN BENCHMARK] x"), (7.5, "[END BENCHMARK]"), (8.0, "other")]
    assert sweep_spans(lines) == [(4.0, 2.5)]


def test_costs_are_printed_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = CommandCost(100.0, {config: ConfigCost(10.0, 5.0, 200.0) for config in SIX})
    tuner = CommandCost(75.0, {config: ConfigCost(8.0, 4.0, None) for config in SIX}, " (a note)")
    print_costs("cold", sweep, tuner)
    output = capsys.readouterr().out
    assert "tuner optimize 75.0 s (a note)" in output
    assert "tuner / sweep 0.75, target ≤ 0.8: met" in output
    assert output.splitlines()[-1].split() == ["seqs32-eager", "10.0", "8.0", "5.0", "4.0", "200", "–"]
    assert cost_data("cold", sweep, tuner)["ratio"] == 0.75


def test_a_command_leaves_no_process(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL); "
        "print(child.pid); print('bad', file=sys.stderr)"
    )
    finished = run_command([sys.executable, "-c", code], {"PATH": "/usr/bin:/bin"}, tmp_path, tmp_path / "log")
    assert finished.code == 0
    [(_, child)] = finished.lines
    state = read_process(int(child))
    assert state is None or not state.alive
    assert "bad" in finished.tail()


def test_own_costs_have_targets(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures([CostFigure.over("ask", [1.0, 2.0, 3.0], "ms", 100.0), CostFigure("peak", 5.0, None, "MB", None, 1)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert rows == [["ask,", "ms", "2", "2.9", "≤", "100", "3"], ["peak,", "MB", "5", "1"]]
