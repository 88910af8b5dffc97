"""The commands that judge what a study measured: `show`, `compare`, `requests` and `tradeoff`."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.cli.from_server import reads_server
from tuner.cli.help import flag, option
from tuner.cli.options import AsCsv, AsJson, Round, Storage, Study, refuse_both_forms
from tuner.cli.output import pages
from tuner.errors import UserError
from tuner.use_cases.places import FORMS, named_trial


@reads_server(lambda values: [values["study"]])
def show(
    study: Study = None,
    pareto: Annotated[
        bool, flag(None, "Show the front: the trials that no other one beats in every metric.", "--pareto")
    ] = False,
    objective: Annotated[
        list[str] | None,
        option(
            None,
            "METRIC[:WEIGHT]",
            "Show the best trials by other objectives, without measuring; with --pareto, the metrics of the front.",
            shown="the study's",
        ),
    ] = None,
    storage: Storage = None,
    as_json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Show the winner beside the defaults.

    Prints the conclusion, each metric with its ratio and confidence interval, the effect of each flag, and the command
    that starts the server. With --pareto or --objective, the trials that other preferences would choose. The exit code
    is 3 if no trial meets the SLOs, and 1 if none works.
    """
    refuse_both_forms(as_json=as_json, csv=csv)
    if csv and not pareto:
        raise UserError("--csv prints the front; add --pareto, or see `tuner study trials --csv`")
    code = pages.show.print_result(study, storage, objective or [], front=pareto, as_json=as_json, csv=csv)
    raise typer.Exit(code)


@reads_server(lambda values: [name for storage, name, _ in map(named_trial, values["trials"]) if storage is None])
def compare(
    trials: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...", help=f"The reference, then what is compared with it: {FORMS}.", show_default=False
        ),
    ],
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Compare trials or studies, metric by metric.

    A study stands for its winner, else for the trial that is nearest to its SLOs. Rounds that measured both are
    compared in pairs; else the repeats are, and two runs on different days differ by more than their interval.

    tuner study compare 0 3 5 8
    """
    if len(trials) < 2:
        raise UserError("two trials or studies are compared; give a second one, `tuner study trials` lists trials")
    pages.compare.print_comparison(trials[0], trials[1:], storage, as_json=as_json)


@reads_server(lambda values: [values["study"]])
def requests(
    study: Study = None,
    trial: Annotated[int | None, option(None, "INTEGER", "Number of the trial.", shown="the winner, else 0")] = None,
    round_: Round = 0,
    storage: Storage = None,
    csv: AsCsv = False,
) -> None:
    """Count a trial's requests by class and length.

    Counts completed and failed requests by class and planned prompt length. A trial that searched its capacity shows
    its latencies by request rate too.
    """
    pages.classes.print_requests(study, trial, round_, storage, csv=csv)


@reads_server(lambda values: [values["study"]])
def tradeoff(
    study: Study = None,
    storage: Storage = None,
    csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:
    """Compare configurations by request class.

    Each cell is the share of offered requests within the SLO of their class; the highest of each row is marked, unless
    all are equal.
    """
    refuse_both_forms(as_json=as_json, csv=csv)
    pages.classes.print_tradeoff(study, storage, csv=csv, as_json=as_json)
