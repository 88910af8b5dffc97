"""The pages of `tuner study sync` and `tuner study ui`: what MLflow got, and the start of its user interface."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from dashboards.mlflow.follower import sync_to_mlflow
from dashboards.mlflow.log import MlflowUnavailable
from dashboards.mlflow.ui import (
    LEAST_PASSWORD,
    PASSWORD_VARIABLE,
    base_url,
    link_command,
    ui_command,
    ui_environment,
    with_password,
)
from dashboards.mlflow.with_parent import PARENT_VARIABLE
from storage import open_store
from tuner.cli.arguments import command
from tuner.client.address import is_loopback
from tuner.errors import EXIT_OURS, TunerError, UserError
from tuner.extras import need
from tuner.observers.mlflow_follower import mlflow_cache
from tuner.processes.ports import port_answers
from tuner.results import text
from tuner.use_cases.places import find_study, storage_url, tracking_uri


def run_sync(study: str | None, storage: str | None) -> int:
    """Log the trials that MLflow lacks, print how many, and return the exit code."""
    url = storage_url(storage, create=False)
    try:
        waits = partial(print, file=sys.stderr)
        report = sync_to_mlflow(url, study, tracking_uri(url), waits, mlflow_cache())
    except MlflowUnavailable as error:
        again = command("study", "sync", *([] if study is None else [study]))
        raise TunerError(f"{error}; nothing is lost, run `{again}` again when MLflow answers") from None
    resumed = f"; {text.count(report.already, 'run')} of an interrupted sync completed" if report.already else ""
    print(f"logged {text.count(report.logged, 'trial')}{resumed}")
    for line in report.failed:
        print(f"failed: {line}")
    return EXIT_OURS if report.failed else 0


def run_ui(study: str | None, port: int, host: str, storage: str | None) -> None:
    """Become MLflow's user interface, after a line with its address."""
    if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        raise UserError(f"MLFLOW_TRACKING_URI is a server already: open {os.environ['MLFLOW_TRACKING_URI']}")
    need("flask_wtf")  # of the extra `ui`; the module mlflow is there without its pages, too
    asks = not is_loopback(host)
    if asks:
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
    if asks:
        environment = with_password(environment, folder)
    print(f"MLflow starts on {shown}; Ctrl-C ends it", flush=True)
    own = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    subprocess.Popen(link_command(port, name, host), stdin=subprocess.DEVNULL, env=own)  # ends with the server
    command = ui_command(folder / "mlartifacts", port, host, asks=asks)
    os.execve(command[0], command, environment)


def _refuse_without_password(host: str, port: int) -> None:
    """Refuse an address that other machines reach, unless MLflow can ask for a password.

    Raises:
        UserError: without a password that MLflow accepts.
    """
    tunnel = f"or leave --host out, and open a tunnel: `ssh -N -L {port}:127.0.0.1:{port} USER@THIS_MACHINE`"
    if len(os.environ.get(PASSWORD_VARIABLE, "")) < LEAST_PASSWORD:
        rule = "other machines reach this address, and MLflow has no password"
        remedy = f"set {PASSWORD_VARIABLE} to {LEAST_PASSWORD} characters or more"
        raise UserError(f"--host {host}: {rule}; {remedy}, {tunnel}")
