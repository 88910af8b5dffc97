"""`tuner ui`: MLflow's user interface."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated

from tuner.cli.help import option
from tuner.cli.options import Storage, StudyName
from tuner.errors import UserError
from tuner.use_cases.places import find_study, storage_url, tracking_uri


def ui(
    study: StudyName = None,
    port: Annotated[int, option(None, "INTEGER", "Port on 127.0.0.1.", least=1, most=65535)] = 5000,
    storage: Storage = None,
) -> None:
    """Start MLflow's user interface, and print the link to a study's runs, the best score first."""
    from contextlib import closing

    from dashboards.mlflow.ui import link_command, ui_command, ui_environment
    from dashboards.mlflow.with_parent import PARENT_VARIABLE
    from storage import open_store
    from tuner.processes.ports import port_answers

    if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        raise UserError(f"MLFLOW_TRACKING_URI is a server already: open {os.environ['MLFLOW_TRACKING_URI']}")
    url = storage_url(storage, create=False)
    with closing(open_store(url)) as store:
        name = find_study(store, study).name
    uri = tracking_uri(url)
    if port_answers("127.0.0.1", port):
        raise UserError(f"--port {port} is taken on 127.0.0.1; choose another")
    database = Path(uri.removeprefix("sqlite:///"))
    print(f"MLflow starts on http://127.0.0.1:{port}; Ctrl-C ends it", flush=True)
    own = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    subprocess.Popen(link_command(port, name), stdin=subprocess.DEVNULL, env=own)  # ends with the server
    command = ui_command(database.parent / "mlartifacts", port)
    os.execve(command[0], command, ui_environment(os.environ, uri))
