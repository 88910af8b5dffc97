"""Answers of a trained model on a real vLLM: INT8 keeps them, a broken checkpoint is found and never exported."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import run_apart
from tuner.engines.server.program_engine import interpreter_of
from tuner.engines.vllm.toolbox import ENTRY_POINT

pytestmark = pytest.mark.release

PROGRAM = Path(__file__).with_name("taught_model.py")
WEIGHTS = """
description: weights of the model
parameters:
  quantization:
    description: checkpoint with quantized weights
    type: categorical
    flag: --quantization
    changes_answers: true
    choices: [null, {value: compressed-tensors, checkpoint: compressed-tensors}]
"""
SMALL = ("--env", "VLLM_CPU_KVCACHE_SPACE=1")
SERVER = ("--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "16")


@pytest.fixture(scope="module")
def taught(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained model, its variants and the questions."""
    folder = tmp_path_factory.mktemp("taught")
    python = interpreter_of(vllm, ENTRY_POINT)
    assert python is not None
    subprocess.run([python, PROGRAM, folder], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return folder


@pytest.fixture
def variables(vllm: Path, home: Path) -> dict[str, str]:
    """Variables of every command: the vLLM, and caches that all of them share."""
    return {"TUNER_VLLM": str(vllm), "TUNER_HOME": str(home), "HF_HUB_OFFLINE": "1"}


def examined(taught: Path, variables: dict[str, str], variant: str) -> dict[str, Any]:
    """Return the comparison of a variant with the trained model; the database keeps the latter's answers."""
    models = ("--reference", str(taught / "bf16"), "--model", str(taught / variant))
    questions = ("--quality-task", str(taught / "task.jsonl"))
    words = (*models, *questions, *SMALL, "--storage", "q.db", "--json", "--", *SERVER)
    printed = run_apart(taught, "quality", *words, **variables)
    assert printed.out, printed.err
    found: dict[str, Any] = json.loads(printed.out)
    return found


def test_eight_bits_keep_the_answers_and_wrong_scales_do_not(taught: Path, variables: dict[str, str]) -> None:
    kept, lost = examined(taught, variables, "int8"), examined(taught, variables, "broken")
    assert kept["answers"]["reference"] > 0.95  # the model knows something
    assert (kept["answers"]["verdict"], kept["broken"]) == ("kept", False)
    assert (lost["answers"]["verdict"], lost["broken"]) == ("lost", True)
    assert lost["answers"]["interval"][1] < 0.99


def test_a_search_with_an_slo_exports_no_configuration_that_lost_the_answers(
    taught: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    shutil.copy(taught / "q.db", tmp_path / "q.db")  # what the checks above measured is kept
    (tmp_path / "weights.yaml").write_text(WEIGHTS)
    printed = run_apart(
        tmp_path,
        "optimize",
        *("--model", str(taught / "bf16"), "--checkpoint", f"compressed-tensors={taught / 'broken'}"),
        *("--space", "weights.yaml", "--enqueue", '{"quantization": "compressed-tensors"}'),
        *("--quality-task", str(taught / "task.jsonl"), "--slo", "quality>=0.99", "--storage", "q.db"),
        *("--trials", "2", "--finalists", "1", "--confirm-rounds", "1", "--baseline-repeats", "1", "--plain", "--json"),
        *("--users", "4", "--prompts", "8", "--input-len", "32", "--output-len", "16", *SMALL, "--", *SERVER),
        **variables,
    )
    trials = json.loads(run_apart(tmp_path, "study", "trials", "--storage", "q.db", "--json", **variables).out)
    [broken] = [row for row in trials if row["number"] == 1]
    assert broken["state"] == "failed", printed.err
    assert "misses quality>=0.99" in broken["failure_message"]
    script = (tmp_path / "best_serve.sh").read_text()
    assert str(taught / "broken") not in script
