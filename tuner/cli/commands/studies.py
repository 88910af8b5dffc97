"""The commands that list what a database has: `list`, `trials` and `trial`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from tuner.cli.from_server import reads_server
from tuner.cli.help import flag, option
from tuner.cli.options import AsCsv, AsJson, Round, Storage, Study, refuse_both_forms
from tuner.cli.output import pages
from tuner.errors import UserError


@reads_server(lambda _: None)
def list_(storage: Storage = None, as_json: AsJson = False) -> None:
    """List the studies of a database.

    Shows model, hardware, number of trials and conclusion of each.
    """
    pages.studies.print_studies(storage, as_json=as_json)


@reads_server(lambda values: [_parts(values["trial"])[0]])
def trial(
    trial: Annotated[
        str,
        typer.Argument(metavar="TRIAL", help="Its number in the latest study, or STUDY#12.", show_default=False),
    ],
    round_: Round = 0,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show one trial in full.

    Prints its command, metrics, SLOs, the figures that the server reports, the time of each phase, and its failure.

    tuner study trial 12
    """
    study, number = _parts(trial)
    pages.studies.print_trial(study, number, round_, storage, as_json=as_json)


def _parts(text: str) -> tuple[str | None, int]:
    """Return the study and the number of a trial; None: the latest study.

    Raises:
        UserError: for a text that names no trial.
    """
    study, _, number = text.rpartition("#")
    if re.fullmatch(r"[0-9]{1,9}", number) is None:
        rule = f"{text!r} names no trial; give its number, or STUDY#12"
        raise UserError(f"{rule}; `tuner study trials` lists trials, `tuner study show` shows a study's winner")
    return study or None, int(number)


@reads_server(lambda values: [values["study"]])
def trials(
    study: Study = None,
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
