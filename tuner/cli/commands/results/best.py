"""`tuner best`: the conclusion of a study, its front, and its best trials under other weights."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.commands.results.stored import StoredStudy, read_study
from tuner.cli.from_server import reads_server
from tuner.cli.help import flag, option
from tuner.cli.options import AsCsv, AsJson, Storage, StudyName
from tuner.errors import EXIT_OURS, EXIT_SLOS_MISSED, UserError

if TYPE_CHECKING:
    from storage.records import TrialRecord

_LEADERS = 3
"""Trials that are shown of a study without a conclusion."""

_WEIGHED = 5
"""Trials that are shown under other weights."""


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
    if as_json and csv:
        raise UserError("--json and --csv exclude each other; give one")
    if csv and not pareto:
        raise UserError("--csv prints the front; add --pareto, or see `tuner trials --csv`")
    stored = read_study(storage, study)
    if pareto:
        _print_front(stored, objective or [], as_json=as_json, csv=csv)
    elif objective:
        _print_weighed(stored, objective, as_json=as_json)
    else:
        _print_best(stored, as_json=as_json)


def _print_front(stored: StoredStudy, metrics: list[str], *, as_json: bool, csv: bool) -> None:
    from tuner.cli.output.pages import front as pages
    from tuner.cli.output.parts.console import show
    from tuner.results.cost_lines import price_lines
    from tuner.study.conclusion.alternatives import front_of_study

    found = front_of_study(stored.record, stored.trials, metrics)
    configs = {trial.number: trial.config for trial in stored.trials if not trial.round}
    if as_json:
        document = {"study": stored.record.name, "provenance": stored.record.provenance.value}
        points = pages.front_document(found.points, configs)
        print(json.dumps({**document, "reference": found.reference, "front": points}, indent=1))
    elif csv:
        sys.stdout.write(pages.front_csv(found.points, configs, stored.defaults))
    else:
        title = f"{stored.record.name} ({stored.record.provenance.value}): the front of {', '.join(found.metrics)}"
        parts = pages.front_parts(found.points, configs, stored.defaults, found.reference_name)
        show(title, *parts, *price_lines(found.metrics, [stored.price]), width=pages.WIDTH)


def _print_weighed(stored: StoredStudy, objectives: list[str], *, as_json: bool) -> None:
    from dataclasses import asdict

    from tuner.cli.output.pages import front as pages
    from tuner.cli.output.parts.console import show
    from tuner.results.cost_lines import price_lines
    from tuner.study.conclusion.alternatives import weighed_trials

    found = weighed_trials(stored.record, stored.trials, objectives)
    trials = {trial.number: trial for trial in stored.trials if not trial.round}
    if as_json:
        rows = [
            {"trial": w.number, "score": asdict(w.score), "config": dict(trials[w.number].config)} for w in found.trials
        ]
        document = {"study": stored.record.name, "provenance": stored.record.provenance.value}
        weights = {"objectives": list(found.objectives), "reference": found.reference}
        print(json.dumps({**document, **weights, "trials": rows}, indent=1))
    else:
        parts = pages.weighed_parts(found, _WEIGHED, trials, stored.defaults)
        show(*parts, *price_lines(_names(found.objectives), [stored.price]), width=pages.WIDTH)


def _names(objectives: Iterable[str]) -> list[str]:
    """Return the metrics of objectives without their weights."""
    return [text.partition(":")[0] for text in objectives]


def _print_best(stored: StoredStudy, *, as_json: bool) -> None:
    winner = _winner(stored)
    if as_json:
        command = shlex.join(winner.outcome.argv) if winner and winner.outcome else None
        conclusion = stored.record.conclusion or {}
        print(json.dumps({"study": stored.record.name, **conclusion, "command": command}, indent=1))
    elif stored.record.conclusion:
        _print_conclusion(stored, winner)
    else:
        _print_leaders(stored)
    if winner is None and (code := _exit_code(stored)):
        raise typer.Exit(code)


def _exit_code(stored: StoredStudy) -> int:
    """Return the exit code of a study without a winner: 0 while the search has a trial that may win."""
    states = {trial.state for trial in stored.trials if not trial.round}
    if "infeasible" in states and (stored.record.conclusion or "ok" not in states):
        return EXIT_SLOS_MISSED
    return 0 if "ok" in states else EXIT_OURS


def _winner(stored: StoredStudy) -> TrialRecord | None:
    number = (stored.record.conclusion or {}).get("winner")
    return next((trial for trial in stored.trials if trial.number == number and not trial.round), None)


def _print_conclusion(stored: StoredStudy, winner: TrialRecord | None) -> None:
    from rich.text import Text

    from tuner.cli.output.pages.conclusion import conclusion_parts
    from tuner.cli.output.parts.console import ShellCommand, show
    from tuner.results.findings import Findings

    conclusion = stored.record.conclusion or {}
    findings = Findings.of(stored.record, stored.trials)
    show(Text(conclusion["reason"], style="bold"), *conclusion_parts(findings))
    if winner is not None and winner.outcome is not None:
        show(f"command of #{winner.number}:", ShellCommand(winner.outcome.argv))


def _print_leaders(stored: StoredStudy) -> None:
    from tuner.cli.commands.results.trials import sorted_trials
    from tuner.cli.output.parts.console import PLAIN_WIDTH, new_table, show, width_of
    from tuner.cli.output.parts.trial_table import fill_trials
    from tuner.results.cost_lines import price_lines

    name, ended = stored.record.name, [trial for trial in stored.trials if trial.outcome and not trial.round]
    by_state = {state: [trial for trial in ended if trial.state == state] for state in ("ok", "infeasible", "failed")}
    titles = {
        "ok": f"study {name} has no conclusion yet; the best trials of its search so far:",
        "infeasible": f"no trial of study {name} meets its SLOs yet; those with the best scores:",
        "failed": f"no trial of study {name} works; the first ones failed:",
    }
    state = next((state for state, trials in by_state.items() if trials), None)
    if state is None:
        print(f"study {name} has no trial that ended yet; `tuner optimize` with the same settings continues it")
        return
    leaders = (by_state[state] if state == "failed" else sorted_trials(by_state[state], "score"))[:_LEADERS]
    print(titles[state])
    table = new_table()
    names = [objective.metric for objective in stored.objectives]
    fill_trials(table, leaders, names, stored.defaults, width_of(PLAIN_WIDTH), whole=True)
    show(table, *price_lines(names, [stored.price]))
