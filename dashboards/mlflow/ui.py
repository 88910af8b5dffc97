"""The commands that start MLflow's UI and print its link."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

BACKEND_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
"""The environment variable in which MLflow's server finds the tracking database, whose URL may have a password."""

JOBS_VARIABLE = "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"
"""The environment variable that starts the workers of MLflow's jobs (evaluations of traces): eight processes, 1.5 GB.
No study has such jobs."""


def ui_command(artifacts: Path | None, port: int) -> list[str]:
    """Return the command that starts MLflow's server on the loopback address, with this process's interpreter.

    The command needs the environment of `ui_environment`.

    Args:
        artifacts: folder of artifacts of new experiments; None leaves it to MLflow.
        port: TCP port to listen on.
    """
    command = [sys.executable, "-m", "mlflow", "server"]
    if artifacts is not None:
        command += ["--default-artifact-root", artifacts.resolve().as_uri()]
    return [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]


def ui_environment(inherited: Mapping[str, str], database: str) -> dict[str, str]:
    """Return the environment of `ui_command`: the inherited one, with the tracking database and without job workers.

    Args:
        inherited: environment of this process; a value of `JOBS_VARIABLE` in it stays.
        database: SQLAlchemy URL of the tracking database.
    """
    return {JOBS_VARIABLE: "false", **inherited, BACKEND_VARIABLE: database}


def link_command(port: int, study: str) -> list[str]:
    """Return the command that waits for the server, prints the link to a study's runs, and ends with its parent."""
    return [sys.executable, "-m", "dashboards.mlflow.link", str(port), study]
