"""`tuner sync` and `tuner ui`: MLflow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.options import Storage, StudyName
from tuner.errors import TunerError, UserError
from tuner.use_cases.places import storage_url, tracking_uri


def sync(study: StudyName = None, storage: Storage = None) -> None:
    """Log to MLflow what is missing there, once."""
    url = storage_url(storage, create=False)
    from dashboards.mlflow.follower import sync_to_mlflow
    from dashboards.mlflow.log import MlflowUnavailable

    try:
        report = sync_to_mlflow(url, study, tracking_uri(url))
    except MlflowUnavailable as error:
        raise TunerError(f"{error}; nothing is lost, run `tuner sync` again once it answers") from None
    print(f"logged {report.logged} trial(s), {report.already} found from an interrupted sync")
    for line in report.failed:
        print(f"failed: {line}")
    if report.failed:
        raise typer.Exit(1)


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
    storage: Storage = None,
) -> None:
    """Open MLflow's UI on 127.0.0.1 for this folder's studies."""
    from dashboards.mlflow.ui import ui_command
    from tuner.processes.ports import port_answers

    if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        raise UserError(f"MLFLOW_TRACKING_URI is a server already: open {os.environ['MLFLOW_TRACKING_URI']}")
    uri = tracking_uri(storage_url(storage, create=False))
    if port_answers("127.0.0.1", port):
        raise UserError(f"--port {port} is taken on 127.0.0.1; choose another")
    database = Path(uri.removeprefix("sqlite:///"))
    print(f"MLflow on http://127.0.0.1:{port} (Ctrl-C ends it)", flush=True)
    command = ui_command(uri, database.parent / "mlartifacts", port)
    os.execv(command[0], command)
