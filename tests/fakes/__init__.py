"""Stand-ins for programs that tests start in quantity. All their output is marked as fake."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

FAKE_VLLM = Path(__file__).with_name("fake_vllm.py")
WITHOUT_MLFLOW = {"PYTHONPATH": str(Path(__file__).with_name("no_mlflow_site"))}
"""Variables of a command whose studies log nothing to MLflow, which takes half of the time of a short one."""


def install_fake_vllm(folder: Path, **behaviour: Any) -> Path:
    """Write an executable `vllm` into `folder` that is the fake, run by this Python; `behaviour` is its FAKE_VLLM.

    FAKE_VLLM in the environment of the caller adds to it and wins.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "vllm"
    fixed = shlex.quote(json.dumps(behaviour))
    program.write_text(
        f'#!/bin/sh\nFAKE_VLLM_BASE={fixed} exec {shlex.quote(sys.executable)} -S {shlex.quote(str(FAKE_VLLM))} "$@"\n'
    )
    program.chmod(0o755)
    return program
