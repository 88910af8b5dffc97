"""The commands that list what a database has: `studies`, `trials` and `show`."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.cli.from_server import reads_server
from tuner.cli.help import flag, option
from tuner.cli.options import AsCsv, AsJson, Round, Storage, StudyName, refuse_both_forms
from tuner.cli.output import pages


@reads_server(lambda _: None)
def studies(storage: Storage = None, as_json: AsJson = False) -> None:
    """List the studies of a database.

    Shows model, hardware, number of trials and conclusion of each.
    """
    pages.studies.print_studies(storage, as_json=as_json)


@reads_server(lambda values: [values["study"]])
def show(
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the trial.")],
    round_: Round = 0,
    study: StudyName = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show one trial in full.

    Prints its command, metrics, SLOs, the figures that the server reports, the time of each phase, and its failure.
    """
    pages.studies.print_trial(study, number, round_, storage, as_json=as_json)


@reads_server(lambda values: [values["study"]])
def trials(
    study: StudyName = None,
    sort: Annotated[
        str | None,
        option(
            None,
            "COLUMN",
            "Sort by score or a metric, best first, or by number; without the rounds.",
            shown="number, with rounds",
        ),
    ] = None,
    top: Annotated[int | None, option(None, "INTEGER", "Show only the first trials.", shown="all", least=1)] = None,
    failed: Annotated[bool, flag(None, "Show only trials that failed, with the reason.", "--failed")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """List the trials of a study.

    Shows the score and the objectives of each, and the values that differ from the engine's defaults. Measurements in
    the rounds of the confirmation are listed below their trial.
    """
    refuse_both_forms(as_json=as_json, csv=csv)
    pages.studies.print_trials(study, storage, sort=sort, top=top, failed=failed, as_json=as_json, csv=csv)
