"""The commands that write the files of a study, or open its pages: `export`, `report`, `sync` and `ui`."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from tuner.cli.from_server import ServerInstead, latest, open_client, reads_server, refuse_both
from tuner.cli.help import flag, option
from tuner.cli.options import Insecure, Storage, StudyName
from tuner.errors import TunerError, UserError
from tuner.owner import free_path
from tuner.use_cases.places import find_study, storage_url, tracking_uri


@reads_server(lambda values: [values["study"]])
def export(
    study: StudyName = None,
    trial: Annotated[int | None, option(None, "INTEGER", "Number of the trial.", shown="the winner")] = None,
    form: Annotated[
        str,
        option(
            None,
            "FORMAT",
            "What to write: script, command (one line), vllm-config (for vllm serve --config), compose, kubernetes, "
            "kserve, ray-serve or systemd.",
            "--format",
        ),
    ] = "script",
    output: Annotated[
        Path | None,
        option(None, "FILE", "File to write.", "--output", "-o", shown="best_serve.sh, or the format's name"),
    ] = None,
    storage: Storage = None,
) -> None:
    """Write a trial as a file that starts its server.

    The bash script can also measure its server: its own --verify runs the benchmark and compares the figures with the
    study's. Every file begins with where its numbers come from, and refers to secrets instead of containing them.

    tuner export --format kubernetes -o server.yaml
    """
    from tuner.export.formats.registry import formats
    from tuner.use_cases.files import export as write_export

    first, *others = write_export(study, trial, output, storage, form)
    what = formats()[form].what if form in formats() else "a bash script"
    print(f"wrote {first}, {what}" + "".join(f", and {each}" for each in others))


def report(
    studies: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY]...", help="Names of studies; several are compared.")
    ] = None,
    bundle: Annotated[
        bool,
        flag(None, "Write a ZIP archive to attach to an issue: report, trials, versions, without secrets.", "--bundle"),
    ] = False,
    leave_out: Annotated[
        list[str] | None,
        option(None, "NAME", "File, column of trials.csv, or key of JSON, left out.", "--leave-out", shown="nothing"),
    ] = None,
    output: Annotated[
        Path | None,
        option(None, "FILE", "File to write.", "--output", "-o", shown="report.html, or NAME-bundle.zip"),
    ] = None,
    storage: Storage = None,
    server: ServerInstead = None,
    insecure: Insecure = False,
) -> None:
    """Write a study as one HTML file to pass on.

    It has the result, the search, the load, and where every number comes from, and needs no network. Without a name,
    the latest study is reported. A bundle adds the trials as CSV, the conclusion, hardware and versions. The command
    lists what is in it; `--leave-out failures.txt --leave-out argv` strikes what you do not pass on.
    """
    refuse_both(server, storage)
    if leave_out and not bundle:
        raise UserError("--leave-out strikes parts of a bundle; add --bundle")
    if server is not None:
        _from_server(studies or [], output, server, bundle=bundle, insecure=insecure)
        return
    if bundle:
        from tuner.use_cases.bundle import write_bundle

        written = write_bundle(studies or [], output, os.environ, storage, leave_out or [])
        print(*(f"  {line}" for line in written.manifest), sep="\n")
        print(f"wrote {written.path}; look through it, then attach it, or strike parts with --leave-out NAME")
        return
    from tuner.use_cases.report.page import report as write_report

    print(f"wrote {write_report(studies or [], output, storage)}; open it in a browser")


def _from_server(names: list[str], output: Path | None, server: str, *, bundle: bool, insecure: bool) -> None:
    """Write the report that a server draws: it has the files of the trials."""
    if bundle:
        raise UserError("--bundle needs the server's database; run it there, with --storage")
    with open_client(server, insecure=insecure) as client:
        found = [*dict.fromkeys(names or [latest(client)])]
        path = free_path(Path("report.html"), ", ".join(found)) if output is None else output
        print(f"wrote {client.report(found[0], path, *found[1:])}; open it in a browser")


def sync(
    study: Annotated[str | None, option(None, "NAME", "Name of the study.", shown="all of the database")] = None,
    storage: Storage = None,
) -> None:
    """Log the trials that MLflow lacks.

    Exits with 1 if a trial could not be logged.
    """
    url = storage_url(storage, create=False)
    from dashboards.mlflow.follower import sync_to_mlflow
    from dashboards.mlflow.log import MlflowUnavailable
    from tuner.results import text

    try:
        report = sync_to_mlflow(url, study, tracking_uri(url), lambda line: print(line, file=sys.stderr))
    except MlflowUnavailable as error:
        raise TunerError(f"{error}; nothing is lost, run `tuner sync` again when MLflow answers") from None
    resumed = f"; {text.count(report.already, 'run')} of an interrupted sync completed" if report.already else ""
    print(f"logged {text.count(report.logged, 'trial')}{resumed}")
    for line in report.failed:
        print(f"failed: {line}")
    if report.failed:
        raise typer.Exit(1)


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
