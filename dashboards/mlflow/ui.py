"""The command that starts MLflow's UI."""

from __future__ import annotations

import sys
from pathlib import Path


def ui_command(tracking_uri: str, artifacts: Path | None, port: int) -> list[str]:
    """Return the command that starts MLflow's server on the loopback address, with this process's interpreter.

    Args:
        tracking_uri: the tracking database.
        artifacts: folder of artifacts of new experiments; None leaves it to MLflow.
        port: TCP port to listen on.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri]
    if artifacts is not None:
        command += ["--default-artifact-root", artifacts.resolve().as_uri()]
    return [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
