"""The folder to copy: its steps run as its README says, on the simulated engine, and its gate names what exists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.fakes import WITHOUT_MLFLOW
from tests.unit.deploy.test_action import ACTION

TEMPLATE = Path(__file__).parents[3] / "deploy" / "template"
WORKFLOW = yaml.safe_load((TEMPLATE / ".github" / "workflows" / "recheck.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the folder, whose parent has `tuner` on a PATH."""
    program = tmp_path / "bin" / "tuner"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tuner.cli.main "$@"\n')
    program.chmod(0o755)
    return Path(shutil.copytree(TEMPLATE, tmp_path / "mine"))


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **WITHOUT_MLFLOW, "PATH": f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    environment["TUNER_HOME"] = str(folder.parent / "home")
    environment.pop("TUNER_VLLM", None)  # with a vLLM, a study measures
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
def test_the_steps_of_its_readme_run(copy: Path) -> None:
    """A known gain is enqueued, so that there is a winner to recheck."""
    enqueue = ("--enqueue", '{"quantization": "fp8"}')
    words = ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--trials", "4", "--plain", "--no-reduce")
    done = run(copy, "./tune.sh", *words, *enqueue)
    assert done.returncode == 0, done.stderr
    assert "predicted, not measured" in done.stderr
    assert os.access(copy / "serve.sh", os.X_OK)
    saved = run(copy, "tuner", "recheck", "production", "--save", "recheck.yaml")
    assert saved.returncode in (0, 5), saved.stderr
    assert yaml.safe_load((copy / "recheck.yaml").read_text(encoding="utf-8"))["study"] == "production"
    written = run(copy, "tuner", "study", "export", "production", "--format", "kubernetes")
    assert written.returncode == 0, written.stderr


def test_the_gate_gives_the_action_what_it_takes() -> None:
    (job,) = WORKFLOW["jobs"].values()
    (gate,) = [step for step in job["steps"] if "deploy/github" in step.get("uses", "")]
    assert {*gate["with"]} <= {*ACTION["inputs"]}
    assert WORKFLOW[True]["pull_request"]["paths"] == ["requirements.txt", gate["with"]["file"]], "YAML 1.1: on is true"
    (made,) = [step["run"] for step in job["steps"] if "run" in step]
    assert gate["with"]["vllm"].startswith(re.findall(r"venv (\w+)", made)[0] + "/bin/")


def test_the_readme_names_files_that_are_there_or_made() -> None:
    named = re.findall(r"(?:\./)?([\w./-]+\.(?:sh|yaml|txt))\b", (TEMPLATE / "README.md").read_text(encoding="utf-8"))
    made = {"serve.sh", "recheck.yaml"}
    assert {"traffic.yaml", "tune.sh", *made} <= {*named}
    assert [name for name in named if name not in made and not (TEMPLATE / name).is_file()] == []
