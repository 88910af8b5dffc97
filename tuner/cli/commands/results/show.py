"""`tuner show`: one trial in full."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tuner.cli.commands.results.stored import read_study
from tuner.cli.from_server import reads_server
from tuner.cli.options import AsJson, Round, Storage, StudyName


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
    stored = read_study(storage, study)
    trial = stored.trial(number, round_)
    if as_json:
        from dashboards.analysis import trials_frame as frames

        sys.stdout.write(frames.to_json(frames.trials_frame([trial])))
        return
    from tuner.cli.output.pages.trial import print_trial

    print_trial(trial, stored.objectives, stored.defaults, stored.price)
