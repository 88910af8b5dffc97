"""`tuner report`: a study as one HTML file, or as an archive with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.help import flag, option
from tuner.cli.options import Storage


def report(
    studies: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY]...", help="Names of studies; several are compared.")
    ] = None,
    bundle: Annotated[
        bool,
        flag(None, "Write a ZIP archive to attach to an issue: report, trials, versions, without secrets.", "--bundle"),
    ] = False,
    output: Annotated[
        Path | None,
        option(None, "FILE", "File to write.", "--output", "-o", shown="report.html, or NAME-bundle.zip"),
    ] = None,
    storage: Storage = None,
) -> None:
    """Write a study as one HTML file to pass on: result, search, load, and where every number comes from.

    The file needs no network. Without a name, the latest study is reported. A bundle adds the trials as CSV, the
    conclusion, hardware and versions, and leaves out secrets, paths, and names of users and hosts.
    """
    if bundle:
        from tuner.use_cases.bundle.write import write_bundle

        print(f"wrote {write_bundle(studies or [], output, os.environ, storage)}; look through it, then attach it")
        return
    from tuner.use_cases.report.write import report as write_report

    print(f"wrote {write_report(studies or [], output or Path('report.html'), storage)}; open it in a browser")
