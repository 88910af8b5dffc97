"""The composite action of `deploy/github`: its own steps, run in bash."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ACTION = yaml.safe_load((Path(__file__).parents[3] / "deploy" / "github" / "action.yml").read_text(encoding="utf-8"))
EXPRESSION = re.compile(r"\$\{\{ ([\w.]+) \}\}")


class Runner:
    """Runs the steps of the action, as far as it uses them: inputs, outputs of steps, environment and summary."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        self.folder = folder
        self.inputs = {name: each["default"] for name, each in ACTION["inputs"].items()} | inputs
        self.outputs: dict[str, dict[str, str]] = {}

    def run(self) -> int:
        """Run steps until one fails; return its exit code, else 0."""
        for step in ACTION["runs"]["steps"]:
            assert step["shell"] == "bash"
            code = self._step(step)
            if code:
                return code
        return 0

    def _step(self, step: dict[str, Any]) -> int:
        output, summary = self.folder / "output", self.folder / "summary.md"
        output.write_text("")
        variables = {name: EXPRESSION.sub(self._value, text) for name, text in step["env"].items()}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "PATH": path}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={**os.environ, **files, **variables},
            check=False,
            capture_output=True,
            text=True,
        )
        pairs = (line.split("=", 1) for line in output.read_text().splitlines())
        self.outputs[step.get("id", step["name"])] = dict(pairs)
        return done.returncode

    def _value(self, match: re.Match[str]) -> str:
        kind, *rest = match[1].split(".")
        return self.inputs[rest[0]] if kind == "inputs" else self.outputs[rest[0]].get(rest[2], "")


def program(folder: Path, code: int, verdict: str) -> None:
    """Write a `tuner` that records its arguments, appends to the summary and ends with a code."""
    (folder / "bin").mkdir()
    tuner = folder / "bin" / "tuner"
    lines = ["#!/bin/bash", f"printf '%s\\n' \"$@\" >{folder}/arguments", f"echo summary >>{folder}/summary.md"]
    tuner.write_text("\n".join([*lines, f'echo \'{{"verdict": "{verdict}"}}\'', f"exit {code}", ""]))
    tuner.chmod(0o755)


@pytest.mark.parametrize(
    ("code", "shown", "inconclusive", "verdict", "ends"),
    [
        (0, "holds", "pass", "holds", 0),
        (0, "better", "pass", "better", 0),
        (6, "worse", "pass", "worse", 6),
        (5, "inconclusive", "pass", "inconclusive", 0),
        (5, "inconclusive", "fail", "inconclusive", 5),
        (2, "", "pass", "error", 2),
        (1, "", "pass", "error", 1),
    ],
)
def test_each_exit_code_ends_the_action_as_it_says(
    tmp_path: Path, code: int, shown: str, inconclusive: str, verdict: str, ends: int
) -> None:
    program(tmp_path, code, shown)
    runner = Runner(tmp_path, inconclusive=inconclusive)
    assert runner.run() == ends
    assert runner.outputs["recheck"]["verdict"] == verdict
    (name,) = re.findall(EXPRESSION, ACTION["outputs"]["verdict"]["value"])
    assert name == "steps.recheck.outputs.verdict"


def test_inputs_are_arguments_and_never_code(tmp_path: Path) -> None:
    program(tmp_path, 0, "holds")
    hostile = "$(touch hacked); a b.yaml"
    assert Runner(tmp_path, file=hostile, vllm="/opt/v llm", rounds="4").run() == 0
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[:6] == ["recheck", hostile, "--rounds", "4", "--margin", "3"]
    assert arguments[6:8] == ["--vllm", "/opt/v llm"]
    assert arguments[8:10] == ["--junit", "recheck.xml"]
    assert not (tmp_path / "hacked").exists()
    assert all("${{" not in step["run"] for step in ACTION["runs"]["steps"])
