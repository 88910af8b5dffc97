"""`tuner optimize --engine openai` through a proxy before a real llama.cpp, and the script of its winner."""

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from records.trials import TrialOutcome
from storage import normalise_url, open_store
from tests.cli.command import VERDICTS, run_apart, run_here
from tests.fakes import WITHOUT_MLFLOW
from tests.gguf_model import write_model

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "examples" / "engine_behind_proxy.sh"
PROXY = ROOT / "tests" / "fakes" / "caching_proxy.py"
TRIALS = 3
REQUESTS = 16
WARMUP = 4
SPACE = """
engine: openai
parameters:
  parallel: {description: Slots., type: categorical, choices: [null, 1, 2], flag: --parallel}
  poll: {description: How long a thread spins., type: categorical, choices: [null, 0], flag: --poll}
"""
LOAD = ("--users", str(WARMUP), "--prompts", str(REQUESTS), "--input-len", "24", "--output-len", "8")
ROUNDS = ("--confirm-rounds", "0", "--baseline-repeats", "1", "--min-gain", "0")
GOALS = ("--objective", "output_throughput", "--slo", "success_rate>=1")


@dataclass(frozen=True)
class Study:
    """A study that has ended: its folder, its variables, the result for programs, and its trials."""

    folder: Path
    variables: dict[str, str]
    result: dict[str, Any]
    trials: list[dict[str, Any]]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("study")
    model = write_model(folder / "made.gguf")
    (folder / "my.yaml").write_text(SPACE)
    (folder / "serve.sh").symlink_to(SCRIPT)
    engine = Path(sys.executable).with_name("tuner-llama-server")
    settings = {"ENGINE": engine, "PROXY": PROXY, "PROXY_LOG": folder / "log", "CACHE": folder / "cache"}
    variables = {"TUNER_HOME": str(folder / "home")}
    done = run_apart(
        folder,
        *("optimize", "--engine", "openai", "--server-command", "./serve.sh {port} {model} {flags} --threads 1"),
        *("--space", "my.yaml", "--model", str(model), "--study", "made", "--trials", str(TRIALS)),
        *(word for name, value in settings.items() for word in ("--env", f"{name}={value}")),
        *(*LOAD, *GOALS, *ROUNDS, "--plain", "--json"),
        **variables,
        **WITHOUT_MLFLOW,
    )
    assert done.code == 0, done.out + done.err
    result: dict[str, Any] = json.loads(done.out)
    return Study(folder, variables, result, json.loads(run_here(folder, "study", "trials", "--json").out))


def outcomes(study: Study) -> list[TrialOutcome]:
    url = normalise_url(str(study.folder / "tuner_study" / "tuner.db"))
    with closing(open_store(url)) as store:
        return [record.outcome for record in store.trials("made", finished=True) if record.outcome is not None]


def test_every_request_counts_and_the_cache_answers_none(study: Study) -> None:
    """The cache outlives the servers; the proxy's own log has a line for each completion."""
    assert len([trial for trial in study.trials if not trial["round"]]) == TRIALS
    assert [trial["number"] for trial in study.trials if trial["state"] != "ok"] == []
    assert {trial["success_rate"] for trial in study.trials} == {1.0}
    lines = (study.folder / "log").read_text().split()
    assert set(lines) == {"miss"}
    facts = [outcome.server for outcome in outcomes(study) if outcome.server is not None]
    sent = sum(WARMUP * (each.warmup_windows or 0) + REQUESTS * (1 + (each.benchmarks_again or 0)) for each in facts)
    assert (len(facts), len(lines)) == (TRIALS, sent)
    assert len(list((study.folder / "cache").iterdir())) == len(lines)
    assert study.result["engine"] == {**study.result["engine"], "name": "openai", "version": "unknown"}


def test_the_script_starts_the_deployment_and_verifies_it(study: Study) -> None:
    script = study.folder / "best_serve.sh"
    assert "Starts the serve.sh server of a tuner study." in script.read_text(encoding="utf-8")
    environment = {**os.environ, **study.variables, "TUNER": str(Path(sys.executable).with_name("tuner"))}
    done = subprocess.run(
        [script, "--verify"], capture_output=True, text=True, env=environment, cwd="/", timeout=300, check=False
    )
    assert done.returncode in VERDICTS, done.stdout + done.stderr
    assert "SLO success_rate>=1: measured 1: holds\n" in done.stdout
    assert "output_throughput: measured " in done.stdout
    assert "server stopped: no process of its group " in done.stdout
    assert set((study.folder / "log").read_text().split()) == {"miss"}
