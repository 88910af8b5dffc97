"""`tuner report`: a study as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.help import option
from tuner.cli.options import Storage


def report(
    studies: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY]...", help="Names of studies; several are compared.")
    ] = None,
    output: Annotated[Path, option(None, "FILE", "HTML file to write.", "--output", "-o")] = Path("report.html"),
    storage: Storage = None,
) -> None:
    """Write a study as one HTML file to pass on: result, search, load, and where every number comes from.

    The file needs no network. Without a name, the latest study is reported.
    """
    from tuner.use_cases.report.write import report as write_report

    print(f"wrote {write_report(studies or [], output, storage)}; open it in a browser")
