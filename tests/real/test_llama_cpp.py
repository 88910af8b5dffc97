"""`tuner optimize --engine llama.cpp` on a real llama.cpp: twelve trials, the winner's rounds, script and exports."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import VERDICTS, ran, run_apart, run_here
from tests.fakes import WITHOUT_MLFLOW
from tests.gguf_model import write_model

STUDY = "made"
TRIALS = 12
SPACE = ("parallel", "kv_unified", "ctx_size", "batch_size", "ubatch_size", "flash_attn", "cache_type_k", "poll")
LOAD = ("--users", "8", "--prompts", "24", "--input-len", "24", "--output-len", "8")
ROUNDS = ("--finalists", "1", "--confirm-rounds", "1", "--baseline-repeats", "1", "--min-gain", "0", "--no-reduce")
GOALS = ("--objective", "output_throughput", "--slo", "success_rate>=1")


@dataclass(frozen=True)
class Study:
    """A study that has ended: its folder, its variables, what the command printed for programs, and its trials."""

    folder: Path
    variables: dict[str, str]
    result: dict[str, Any]
    trials: list[dict[str, Any]]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("study")
    model = write_model(folder / "made.gguf")
    variables = {"TUNER_HOME": str(folder / "home"), "LLAMA_ARG_CTX_SIZE": "7"}
    only = [word for name in SPACE for word in ("--only", name)]
    done = run_apart(
        folder,
        *("optimize", "--engine", "llama.cpp", "--model", str(model), "--study", STUDY, "--trials", str(TRIALS)),
        *(*LOAD, *only, *GOALS, *ROUNDS, "--plain", "--json", "--", "--threads", "1"),
        **variables,
        **WITHOUT_MLFLOW,
    )
    assert done.code == 0, done.out + done.err
    result: dict[str, Any] = json.loads(done.out)
    return Study(folder, variables, result, json.loads(run_here(folder, "study", "trials", "--json").out))


def test_every_trial_is_measured_and_every_request_counts(study: Study) -> None:
    searched = [trial for trial in study.trials if not trial["round"]]
    assert len(searched) == TRIALS
    assert [trial["number"] for trial in searched if trial["state"] != "ok"] == []
    assert {trial["success_rate"] for trial in study.trials} == {1.0}
    assert study.result["provenance"] == "measured"
    assert study.result["engine"]["name"] == "llama.cpp"


def test_the_winner_is_measured_again(study: Study) -> None:
    winner = study.result["conclusion"]["winner"]
    rounds = [trial["round"] for trial in study.trials if trial["number"] == winner]
    assert sorted(rounds) == [0, 1]


def test_the_script_starts_and_verifies_the_winner(study: Study) -> None:
    script = study.folder / "best_serve.sh"
    text = script.read_text(encoding="utf-8")
    assert "Starts the llama.cpp server of a tuner study." in text
    assert "  --threads 1\n" in text
    environment = {**os.environ, **study.variables, "TUNER": str(Path(sys.executable).with_name("tuner"))}
    done = subprocess.run(
        [script, "--verify"], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode in VERDICTS, done.stdout + done.stderr
    assert "SLO success_rate>=1: measured 1: holds\n" in done.stdout
    assert "output_throughput: measured " in done.stdout
    assert "server stopped: no process of its group " in done.stdout


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("command", "tuner-llama-server --model {model} --alias {model} --metrics"),
        ("systemd", "/tuner-llama-server --model {model} --alias {model} --metrics"),
    ],
)
def test_formats_of_any_engine_hold_the_server(study: Study, form: str, line: str) -> None:
    file = study.folder / form
    ran(study.folder, "study", "export", "--format", form, "-o", str(file))
    assert line.format(model=study.folder / "made.gguf") in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["vllm-config", "compose", "kubernetes", "kserve", "ray-serve"])
def test_formats_of_vllm_refuse_it_in_one_line(study: Study, form: str) -> None:
    done = run_here(study.folder, "study", "export", "--format", form, "-o", str(study.folder / form))
    assert done.code == 2
    assert done.err.endswith("the study ran llama.cpp; choose one of script, command, systemd\n")
    assert done.err.count("\n") == 1
    assert not (study.folder / form).exists()


def test_the_report_shows_the_command(study: Study) -> None:
    report = next((study.folder / "tuner_study" / "artifacts").rglob("report.html")).read_text(encoding="utf-8")
    assert f"llama-server --model {study.folder / 'made.gguf'}" in report
