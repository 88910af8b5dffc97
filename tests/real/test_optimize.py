"""`tuner optimize` on a real vLLM: a whole study with its script, and one that suffix decoding wins."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.entities import Run

from tests.cli.command import VERDICTS
from tests.real.studies import EAGER, SERVER, environment, optimize

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def trials(folder: Path, home: Path, study: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tuner.cli.main", "study", "trials", study, "--json"],
        cwd=folder,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_every_trial_is_measured_or_has_its_type(result: dict[str, Any], study_folder: Path, home: Path) -> None:
    assert (result["ending"], result["trials"], result["mlflow_complete"]) == ("done", 4, True)
    assert result["provenance"] == "measured"
    rows = {row["number"]: row for row in trials(study_folder, home, "faults") if not row["round"]}
    assert sorted(rows) == list(range(4))
    assert rows[0]["state"] == "ok"
    for number, phase, message in (
        (1, "check", "async scheduling is only supported with"),
        (2, "ready", "No common block size for 16"),
    ):
        failure = rows[number]["failure_kind"], rows[number]["failure_phase"]
        assert failure == ("invalid_configuration", phase)
        assert message in rows[number]["failure_message"]
    assert rows[3]["state"] == "ok"
    assert rows[3]["output_throughput"] > 0


def test_every_trial_is_a_nested_run_with_artifacts(result: dict[str, Any], study_folder: Path) -> None:
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{study_folder / 'tuner_study' / 'mlflow.db'}")
    runs: list[Run] = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    nested = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
    assert len(nested) == len(runs) - 1 == 4
    measured = 0
    for run in nested:
        names = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
        if "output_throughput" in run.data.metrics:
            measured += 1
            assert {"server.log", "command.txt", "bench-0.json"} <= names
    assert measured == sum(result["states"].get(state, 0) for state in ("ok", "infeasible"))


def test_the_script_verifies_itself(result: dict[str, Any], study_folder: Path, home: Path, vllm: Path) -> None:
    script = study_folder / result["script"]
    variables = {**environment(home), "VLLM": str(vllm)}
    done = subprocess.run([script, "--verify"], env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in VERDICTS, done.stdout + done.stderr  # the machine may be slower than during the study
    assert "output_throughput: measured " in done.stdout
    slos = [line for line in done.stdout.splitlines() if line.startswith("SLO ")]
    assert len(slos) == 3, done.stdout
    assert "SLO success_rate>=1: measured 1: holds" in slos
    assert "server stopped: no process of its group" in done.stdout


@pytest.mark.release
def test_suffix_decoding_wins_at_temperature_0(tmp_path: Path, home: Path, vllm: Path, tiny_model: Path) -> None:
    """The defaults against suffix decoding, three seeds each.

    This is the short form of docs/reports/2026-11-23-speculation-and-temperature.md.

    Two users: with ten, whether suffix decoding wins depends on the CPU.
    """
    printed = optimize(
        *(tmp_path, home, vllm, tiny_model, "--trials", "2", "--space", "speculation-cpu", "--study", "short"),
        *("--only", "speculative", "--only", "suffix_tokens", "--temperature", "0", "--users", "2"),
        *("--enqueue", '{"speculative": "suffix", "suffix_tokens": 16}', "--prompts", "24", "--output-len", "128"),
        *("--repeats", "3", "--baseline-repeats", "3", "--confirm-rounds", "0", "--slo", "success_rate>=1"),
        server=(*SERVER, EAGER),
    )
    assert printed["states"] == {"ok": 2}
    conclusion = printed["conclusion"]
    assert (conclusion["winner"], conclusion["keep_defaults"]) == (1, False)
    assert '"method":"suffix"' in (tmp_path / printed["script"]).read_text()
