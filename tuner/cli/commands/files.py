"""The commands that write the files of a study, or open its pages: `export`, `report`, `sync` and `ui`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.from_server import ServerInstead, reads_server, refuse_both
from tuner.cli.help import flag, option
from tuner.cli.options import Insecure, Storage, Study
from tuner.cli.output import pages
from tuner.errors import UserError


@reads_server(lambda values: [values["study"]])
def export(
    study: Study = None,
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

    tuner study export --format kubernetes -o server.yaml
    """
    pages.files.print_export(study, trial, output, storage, form)


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
    check: Annotated[
        Path | None,
        option(None, "BUNDLE", "Check whether the gallery can use a bundle; nothing is written.", shown="none"),
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
    if check is not None:
        if studies or bundle or leave_out or output or storage or server:
            raise UserError("--check reads the bundle only; leave the other words out")
        pages.files.print_check(check)
        return
    if leave_out and not bundle:
        raise UserError("--leave-out strikes parts of a bundle; add --bundle")
    if server is not None and bundle:
        raise UserError("--bundle needs the server's database; run it there, with --storage")
    if server is not None:
        pages.files.print_server_report(studies or [], output, server, insecure=insecure)
    elif bundle:
        pages.files.print_bundle(studies or [], output, storage, leave_out or [])
    else:
        pages.files.print_report(studies or [], output, storage)


def sync(
    study: Annotated[
        str | None,
        typer.Argument(metavar="[STUDY]", help="Name of the study.", show_default="all of the database"),
    ] = None,
    storage: Storage = None,
) -> None:
    """Log the trials that MLflow lacks.

    Exits with 1 if a trial could not be logged.
    """
    raise typer.Exit(pages.mlflow.run_sync(study, storage))


def ui(
    study: Study = None,
    port: Annotated[int, option(None, "INTEGER", "Port to listen on.", least=1, most=65535)] = 5000,
    host: Annotated[
        str, option(None, "ADDRESS", "Address to listen on; one that other machines reach needs a password.")
    ] = "127.0.0.1",
    storage: Storage = None,
) -> None:
    """Start MLflow's user interface, and print the link to a study.

    The link shows the study's runs, the best score first.
    """
    pages.mlflow.run_ui(study, port, host, storage)
