"""The MLflow UI's command line: on loopback only, with the interpreter that runs the tuner."""

from __future__ import annotations

import sys
from pathlib import Path


def ui_command(tracking_uri: str, artifacts: Path | None, port: int) -> list[str]:
    """Return the command of MLflow's server for a tracking database; `artifacts` is its folder for new experiments."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri]
    if artifacts is not None:
        command += ["--default-artifact-root", artifacts.resolve().as_uri()]
    return [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
