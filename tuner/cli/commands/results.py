"""The commands that judge what a study measured: `best`, `compare`, `requests` and `tradeoff`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tuner.cli.from_server import reads_server
from tuner.cli.help import flag, option
from tuner.cli.options import SERVER, AsCsv, AsJson, Margin, Round, Storage, StudyName, of, refuse_both_forms
from tuner.cli.output import pages
from tuner.errors import UserError
from tuner.settings.declared import STUDY
from tuner.use_cases.places import FORMS, named_trial


@reads_server(lambda values: [values["study"]])
def best(
    study: StudyName = None,
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
        raise UserError("--csv prints the front; add --pareto, or see `tuner trials --csv`")
    code = pages.best.print_best(study, storage, objective or [], front=pareto, as_json=as_json, csv=csv)
    raise typer.Exit(code)


@reads_server(lambda values: None if values["url"] else _studies([*values["trials"]], values["study"]))
def compare(
    trials: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[A B...]", help=f"The reference, then what is compared with it: {FORMS}.", show_default=False
        ),
    ] = None,
    url: Annotated[
        list[str] | None,
        option(SERVER, "URL", "A running server, the reference first; compared instead of trials.", shown="none"),
    ] = None,
    workload: Annotated[list[str] | None, of("workload", help="Traffic for the servers.", shown="none")] = None,
    model: Annotated[
        str | None, option(SERVER, "NAME", "Name of the model in requests.", shown="the first that a server lists")
    ] = None,
    tokenizer: Annotated[
        str | None, option(SERVER, "DIR|NAME", "Tokenizer of the load generator.", shown="that of the model")
    ] = None,
    requests: Annotated[
        int | None, option(SERVER, "INTEGER", "Requests of each run.", shown="the workload's, at most 50", least=2)
    ] = None,
    blocks: Annotated[int, option(SERVER, "INTEGER", "Most blocks of four runs: A, B, B, A.", least=2)] = 10,
    margin: Margin = 3.0,
    study: Annotated[str | None, option(STUDY, "NAME", "Study of trials without one.", shown="the latest")] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Compare trials or studies, or two running servers.

    A study stands for its winner, else for the trial that is nearest to its SLOs. Rounds that measured both are
    compared in pairs; else the repeats are, and two runs on different days differ by more than their interval.

    tuner compare 0 3 5 8

    Two servers get the same requests in alternation until the interval of B's speed tells: exit code 0 if B is as fast
    as A or faster, 6 if it is slower or fails requests, 5 if the blocks cannot tell. The API keys are those in
    TUNER_API_KEY_A and TUNER_API_KEY_B, or TUNER_API_KEY.

    tuner compare --url URL --url URL --workload chat.yaml
    """
    given = trials or []
    if not url and len(given) < 2:
        raise UserError("`tuner compare` needs two trials or studies, or --url twice; `tuner trials` lists trials")
    if not url:
        pages.compare.print_comparison(given[0], given[1:], study, storage, as_json=as_json)
        return
    if given or not workload:
        raise UserError("two servers are compared under --workload FILE, without trials; add it, and give --url twice")
    settings = pages.compare.CanarySettings(
        urls=tuple(each.rstrip("/").removesuffix("/v1") for each in url),
        workloads=tuple(workload),
        model=model,
        tokenizer=tokenizer,
        requests=requests,
        margin=margin / 100,
        blocks=blocks,
    )
    raise typer.Exit(pages.compare.run_canary(settings, as_json=as_json))


def _studies(texts: Sequence[str], study: str | None) -> list[str | None]:
    """Return the studies that the texts name, without those of other databases."""
    return [name or study for storage, name, _ in map(named_trial, texts) if storage is None]


@reads_server(lambda values: [values["study"]])
def requests(
    study: StudyName = None,
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
    study: StudyName = None,
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
