"""`tuner export`: a trial as a bash script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tuner.cli.help import option
from tuner.cli.options import Storage, StudyName


def export(
    study: StudyName = None,
    trial: Annotated[int | None, option(None, "INTEGER", "Number of the trial.", shown="the winner")] = None,
    output: Annotated[Path, option(None, "FILE", "Bash script to write.", "--output", "-o")] = Path("best_serve.sh"),
    storage: Storage = None,
) -> None:
    """Write a trial as a bash script that starts its server.

    The script's own --verify runs the benchmark and compares the figures with the study's.
    """
    from tuner.use_cases.export import export as write_export

    print(f"wrote {write_export(study, trial, output, storage)}, a bash script")
