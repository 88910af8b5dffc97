"""`tuner ui`: MLflow's user interface."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from tuner.cli.help import option
from tuner.cli.options import Storage
from tuner.errors import UserError
from tuner.use_cases.places import storage_url, tracking_uri


def ui(
    port: Annotated[int, option(None, "INTEGER", "Port on 127.0.0.1.", least=1, most=65535)] = 5000,
    storage: Storage = None,
) -> None:
    """Start MLflow's user interface with the studies of a database."""
    from dashboards.mlflow.ui import ui_command, ui_environment
    from tuner.processes.ports import port_answers

    if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        raise UserError(f"MLFLOW_TRACKING_URI is a server already: open {os.environ['MLFLOW_TRACKING_URI']}")
    uri = tracking_uri(storage_url(storage, create=False))
    if port_answers("127.0.0.1", port):
        raise UserError(f"--port {port} is taken on 127.0.0.1; choose another")
    database = Path(uri.removeprefix("sqlite:///"))
    print(f"MLflow starts on http://127.0.0.1:{port}; Ctrl-C ends it", flush=True)
    command = ui_command(database.parent / "mlartifacts", port)
    os.execve(command[0], command, ui_environment(os.environ, uri))
