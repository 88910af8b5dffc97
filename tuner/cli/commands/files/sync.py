"""`tuner sync`: log the trials that MLflow lacks."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tuner.cli.help import option
from tuner.cli.options import Storage
from tuner.errors import TunerError
from tuner.use_cases.places import storage_url, tracking_uri


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
