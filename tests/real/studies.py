"""Studies of a real vLLM by the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STUDY_S = 1000.0
EAGER = "--enforce-eager"
"""Compiling takes two minutes, and most tests are not about it."""

SERVER = ("--", "--load-format", "dummy", "--max-model-len", "1024", "--generation-config", "vllm")
LOAD = ("--users", "10", "--input-len", "128", "--env", "VLLM_CPU_KVCACHE_SPACE=1")


def environment(home: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    return {**inherited, "TUNER_HOME": str(home), "HF_HUB_OFFLINE": "1"}


def optimize(
    folder: Path, home: Path, vllm: Path, model: Path, *argv: str, server: Sequence[str] = SERVER
) -> dict[str, Any]:
    """Run a study in a folder and return what it prints for programs."""
    return study(folder, environment(home), vllm, model, *LOAD, *argv, *server)


def study(folder: Path, variables: dict[str, str], vllm: Path, model: Path, *argv: str) -> dict[str, Any]:
    """Run `tuner optimize` in a folder with these variables and return what it prints for programs."""
    start = ["optimize", "--engine", "vllm", "--vllm", str(vllm), "--model", str(model)]
    done = subprocess.run(
        [sys.executable, "-m", "tuner.cli.main", *start, "--no-reduce", "--plain", "--json", *argv],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STUDY_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result
