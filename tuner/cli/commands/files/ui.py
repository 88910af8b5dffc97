"""`tuner ui`: MLflow's user interface."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from tuner.cli.help import option
from tuner.cli.options import Storage, StudyName
from tuner.errors import UserError
from tuner.use_cases.places import find_study, storage_url, tracking_uri


def ui(
    study: StudyName = None,
    port: Annotated[int, option(None, "INTEGER", "Port to listen on.", least=1, most=65535)] = 5000,
    host: Annotated[
        str, option(None, "ADDRESS", "Address to listen on; one that other machines reach needs a password.")
    ] = "127.0.0.1",
    storage: Storage = None,
) -> None:
    """Start MLflow's user interface, and print the link to a study.

    The link shows the study's runs, the best score first.
    """
    from contextlib import closing

    from dashboards.mlflow.ui import base_url, is_loopback, link_command, ui_command, ui_environment, with_password
    from dashboards.mlflow.with_parent import PARENT_VARIABLE
    from storage import open_store
    from tuner.processes.ports import port_answers

    if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        raise UserError(f"MLFLOW_TRACKING_URI is a server already: open {os.environ['MLFLOW_TRACKING_URI']}")
    if not is_loopback(host):
        _refuse_without_password(host, port)
    url = storage_url(storage, create=False)
    with closing(open_store(url)) as store:
        name = find_study(store, study).name
    uri = tracking_uri(url)
    shown = base_url(host, port)
    if port_answers(urlsplit(shown).hostname or host, port):
        raise UserError(f"--port {port} is taken on {host}; choose another")
    folder = Path(uri.removeprefix("sqlite:///")).parent
    environment = ui_environment(os.environ, uri)
    if not is_loopback(host):
        environment = with_password(environment, folder)
    print(f"MLflow starts on {shown}; Ctrl-C ends it", flush=True)
    own = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    subprocess.Popen(link_command(port, name, host), stdin=subprocess.DEVNULL, env=own)  # ends with the server
    command = ui_command(folder / "mlartifacts", port, host)
    os.execve(command[0], command, environment)


def _refuse_without_password(host: str, port: int) -> None:
    """Refuse an address that other machines reach, unless MLflow can ask for a password.

    Raises:
        UserError: without a password that MLflow accepts, or without the library that MLflow needs for it.
    """
    from dashboards.mlflow.ui import LEAST_PASSWORD, PASSWORD_VARIABLE

    tunnel = f"or leave --host out, and open a tunnel: `ssh -N -L {port}:127.0.0.1:{port} USER@THIS_MACHINE`"
    if len(os.environ.get(PASSWORD_VARIABLE, "")) < LEAST_PASSWORD:
        rule = "other machines reach this address, and MLflow has no password"
        remedy = f"set {PASSWORD_VARIABLE} to {LEAST_PASSWORD} characters or more"
        raise UserError(f"--host {host}: {rule}; {remedy}, {tunnel}")
    if find_spec("flask_wtf") is None:
        rule = "MLflow needs Flask-WTF to ask for a password"
        raise UserError(f"--host {host}: {rule}; `pip install flask-wtf`, {tunnel}")
