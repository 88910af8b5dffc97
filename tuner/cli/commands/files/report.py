"""`tuner report`: a study as one HTML file, or as an archive with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.from_server import ServerInstead, latest, open_client, refuse_both
from tuner.cli.help import flag, option
from tuner.cli.options import Insecure, Storage
from tuner.errors import UserError
from tuner.owner import free_path


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
    from tuner.use_cases.report.write import report as write_report

    print(f"wrote {write_report(studies or [], output, storage)}; open it in a browser")


def _from_server(names: list[str], output: Path | None, server: str, *, bundle: bool, insecure: bool) -> None:
    """Write the report that a server draws: it has the files of the trials."""
    if bundle:
        raise UserError("--bundle needs the server's database; run it there, with --storage")
    with open_client(server, insecure=insecure) as client:
        found = [*dict.fromkeys(names or [latest(client)])]
        path = free_path(Path("report.html"), ", ".join(found)) if output is None else output
        print(f"wrote {client.report(found[0], path, *found[1:])}; open it in a browser")
