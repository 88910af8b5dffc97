"""A study of two engines, the fake vLLM and a real llama.cpp: it ranks both, and both can be started and verified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import CommandOutput, run_apart, run_here
from tests.fakes import install_fake_vllm
from tests.two_formats import write_both

pytestmark = pytest.mark.slow

TRIALS = 5
ENGINES = ("vllm", "llama.cpp")
LOAD = ("--users", "4", "--prompts", "8", "--input-len", "24", "--output-len", "8")
SPACE = ("--space", "cpu", "--only", "max_num_seqs", "--only", "parallel", "--only", "batch_size")
ROUNDS = ("--finalists", "1", "--confirm-rounds", "1", "--baseline-repeats", "1", "--no-reduce")


@dataclass(frozen=True)
class Study:
    """A study that has ended, with what it printed and its trials."""

    folder: Path
    variables: dict[str, str]
    done: CommandOutput
    trials: list[dict[str, Any]]

    def verified(self, engine: str) -> str:
        """Start and verify the script of the first trial of an engine; return what it printed."""
        number = ENGINES.index(engine)
        script = self.folder / f"{number}.sh"
        assert run_here(self.folder, "export", "--trial", str(number), "-o", str(script)).code == 0
        variables = {**os.environ, **self.variables, "TUNER": str(Path(sys.executable).with_name("tuner"))}
        done = subprocess.run([script, "--verify"], capture_output=True, text=True, env=variables, check=False)
        assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: a busy machine is slower than in the study
        return done.stdout


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("study")
    gguf, model = write_both(folder)
    variables = {"TUNER_HOME": str(folder / "home")}
    engines = [word for engine in ENGINES for word in ("--engine", engine)]
    models = ("--vllm", str(install_fake_vllm(folder / "bin")), "--model", str(gguf), "--model", str(model))
    flags = ("--", "llama.cpp=", "--threads", "1")
    words = (*engines, *models, "--trials", str(TRIALS), *LOAD, *SPACE, *ROUNDS, "--plain", *flags)
    done = run_apart(folder, "optimize", *words, **variables)
    assert done.code == 0, done.out + done.err
    return Study(folder, variables, done, json.loads(run_here(folder, "trials", "--json").out))


def test_the_defaults_of_both_engines_are_the_first_trials(study: Study) -> None:
    searched = [trial for trial in study.trials if not trial["round"]]
    assert [trial["state"] for trial in searched] == ["ok"] * TRIALS
    assert {trial["success_rate"] for trial in study.trials} == {1.0}
    assert [trial["config.engine"] or "vllm" for trial in searched[:2]] == list(ENGINES)


def test_the_result_ranks_both_engines(study: Study) -> None:
    text = study.done.out
    table = text.partition("engines, each by its best measured configuration\n")[2].partition("\n\n")[0].splitlines()
    assert sorted(line.split()[0] for line in table[2:]) == sorted(ENGINES)
    report = next((study.folder / "tuner_study" / "artifacts").rglob("report.html")).read_text(encoding="utf-8")
    assert "Engines" in report


@pytest.mark.parametrize("engine", ENGINES)
def test_the_script_of_each_engine_sends_the_tokens_that_both_have(study: Study, engine: str) -> None:
    printed = study.verified(engine)
    assert "output_throughput: measured " in printed
    assert "SLO success_rate>=1: measured 1: holds\n" in printed
    text = (study.folder / f"{ENGINES.index(engine)}.sh").read_text(encoding="utf-8")
    assert text.count("--tokenizer ") == 2
    assert "Starts the vLLM server" in text if engine == "vllm" else "Starts the llama.cpp server" in text
