"""The commands of `tuner study`: list, read, judge and compare what a database has, and write its files and pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.from_server import ServerInstead, reads_server, refuse_two_places
from tuner.cli.help import flag, option
from tuner.cli.options import AsCsv, AsJson, Insecure, Round, Storage, Study, refuse_both
from tuner.cli.output import pages
from tuner.errors import UserError
from tuner.use_cases.places import FORMS, named_trial


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
    """Return the study and the number of a trial; None: the latest study."""
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
    refuse_both("--json", "--csv", given=as_json and csv)
    pages.studies.print_trials(study, storage, sort=sort, top=top, failed=failed, as_json=as_json, csv=csv)


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
    refuse_both("--json", "--csv", given=as_json and csv)
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
    refuse_both("--json", "--csv", given=as_json and csv)
    pages.classes.print_tradeoff(study, storage, csv=csv, as_json=as_json)


@reads_server(lambda values: [values["study"]])
def export(
    study: Study = None,
    trial: Annotated[int | None, option(None, "INTEGER", "Number of the trial.", shown="the winner")] = None,
    form: Annotated[
        str,
        option(
            None,
            "FORMAT",
            "What to write: script, command (one line), vllm-config (for vllm serve --config), compose, kubernetes, "
            "kserve, ray-serve or systemd.",
            "--format",
        ),
    ] = "script",
    output: Annotated[
        Path | None,
        option(None, "FILE", "File to write.", "--output", "-o", shown="best_serve.sh, or the format's name"),
    ] = None,
    storage: Storage = None,
) -> None:
    """Write a trial as a file that starts its server.

    The bash script can also measure its server: its own --verify runs the benchmark and compares the figures with the
    study's. Every file begins with where its numbers come from, and refers to secrets instead of containing them.

    tuner study export --format kubernetes -o server.yaml
    """
    pages.files.print_export(study, trial, output, storage, form)


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
    check: Annotated[
        Path | None,
        option(None, "BUNDLE", "Check whether the gallery can use a bundle; nothing is written.", shown="none"),
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
    refuse_two_places(server, storage)
    if check is not None:
        if studies or bundle or leave_out or output or storage or server:
            raise UserError("--check reads the bundle only; leave the other words out")
        pages.files.print_check(check)
        return
    if leave_out and not bundle:
        raise UserError("--leave-out strikes parts of a bundle; add --bundle")
    if server is not None and bundle:
        raise UserError("--bundle needs the server's database; run it there, with --storage")
    if server is not None:
        pages.files.print_server_report(studies or [], output, server, insecure=insecure)
    elif bundle:
        pages.files.print_bundle(studies or [], output, storage, leave_out or [])
    else:
        pages.files.print_report(studies or [], output, storage)


def sync(
    study: Annotated[
        str | None,
        typer.Argument(metavar="[STUDY]", help="Name of the study.", show_default="all of the database"),
    ] = None,
    storage: Storage = None,
) -> None:
    """Log the trials that MLflow lacks.

    Exits with 1 if a trial could not be logged.
    """
    raise typer.Exit(pages.mlflow.run_sync(study, storage))


def ui(
    study: Study = None,
    port: Annotated[int, option(None, "INTEGER", "Port to listen on.", least=1, most=65535)] = 5000,
    host: Annotated[
        str, option(None, "ADDRESS", "Address to listen on; one that other machines reach needs a password.")
    ] = "127.0.0.1",
    storage: Storage = None,
) -> None:
    """Start MLflow's user interface, and print the link to a study.

    The link shows the study's runs, the best score first.
    """
    pages.mlflow.run_ui(study, port, host, storage)
