"""`tuner export`: a trial as a script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.options import Storage, StudyName


def export(
    study: StudyName = None,
    trial: Annotated[int | None, typer.Option(help="Trial's number.  [default: the winner]")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("best_serve.sh"),
    storage: Storage = None,
) -> None:
    """Write a trial as a script that starts its server, and verifies itself with --verify."""
    from tuner.use_cases.export import export as write_export

    print(f"wrote {write_export(study, trial, output, storage)}")
