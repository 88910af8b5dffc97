"""The command that starts MLflow's UI."""

from __future__ import annotations

import sys
from pathlib import Path

BACKEND_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
"""The environment variable in which MLflow's server finds the tracking database, whose URL may have a password."""


def ui_command(artifacts: Path | None, port: int) -> list[str]:
    """Return the command that starts MLflow's server on the loopback address, with this process's interpreter.

    The tracking database is in the environment, under `BACKEND_VARIABLE`.

    Args:
        artifacts: folder of artifacts of new experiments; None leaves it to MLflow.
        port: TCP port to listen on.
    """
    command = [sys.executable, "-m", "mlflow", "server"]
    if artifacts is not None:
        command += ["--default-artifact-root", artifacts.resolve().as_uri()]
    return [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
