"""`tuner trials`, `tuner best` and `tuner show`: what a study found."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.options import AsJson, Storage, StudyName
from tuner.errors import UserError
from tuner.use_cases.places import find_study, storage_url

if TYPE_CHECKING:
    from storage.records import StudyRecord, TrialRecord


def read_trials(storage: str | None, study: str | None) -> tuple[StudyRecord, list[TrialRecord]]:
    """Return a study and its trials, re-measurements included.

    Raises:
        UserError: when there is no such database or study.
    """
    from storage import open_store

    with closing(open_store(storage_url(storage, create=False))) as store:
        record = find_study(store, study)
        return record, store.trials(record.name)


def _objectives(study: StudyRecord) -> list[Any]:
    from tuner.scoring.objectives import parse_objective

    return [parse_objective(text) for text in study.premise["objectives"]]


def trials(
    study: StudyName = None,
    storage: Storage = None,
    as_json: AsJson = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """List the trials of a study, re-measurements included."""
    if as_json and csv:
        raise UserError("--json and --csv exclude each other; give one")
    record, found = read_trials(storage, study)
    if as_json or csv:
        from dashboards.analysis import trials_frame as frames

        frame = frames.trials_frame(found)
        sys.stdout.write(frames.to_json(frame) if as_json else frames.to_csv(frame))
        return
    _table(record, found)


def _table(study: StudyRecord, found: list[TrialRecord]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from storage.metrics import metric
    from tuner.cli.output import text

    objectives = _objectives(study)
    table = Table(box=box.SIMPLE_HEAD, title=f"{study.name} ({study.provenance.value})", title_justify="left")
    for name in (
        "#",
        "state",
        "score",
        *(f"{o.metric}\n{metric(o.metric).unit}" for o in objectives),
        "configuration",
    ):
        table.add_column(name, justify="left" if name in ("state", "configuration") else "right", overflow="fold")
    for trial in found:
        outcome, verdict = trial.outcome, trial.verdict
        state = trial.state
        if outcome is not None and outcome.failure is not None:
            state = outcome.failure.kind.value
        what = f"[{trial.label}] " if trial.label and not trial.round else ""
        table.add_row(
            text.title(trial.number, trial.round).removeprefix("#"),
            state,
            text.number(verdict.score if verdict else None),
            *(text.number(outcome.metric(o.metric) if outcome else None) for o in objectives),
            (what + text.config(trial.config)).replace("[", "\\["),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def best(study: StudyName = None, storage: Storage = None, as_json: AsJson = False) -> None:
    """Say which configuration won, by how much, how sure that is, and what each of its flags earns."""
    from tuner.cli.output import text
    from tuner.scoring.flag_effects import flag_effect_lines

    record, found = read_trials(storage, study)
    conclusion = dict(record.conclusion or {})
    if as_json:
        winner = next((t for t in found if t.number == conclusion.get("winner") and not t.round), None)
        command = shlex.join(winner.outcome.argv) if winner and winner.outcome else None
        print(json.dumps({"study": record.name, **conclusion, "command": command}, indent=1))
        return
    if not conclusion:
        print(f"study {record.name} has no conclusion yet; the search's best so far:")
        scored = sorted((t for t in found if t.state == "ok" and not t.round), key=_score, reverse=True)
        for trial in scored[:3]:
            print(text.result_line(trial.number, found, _objectives(record)))
        return
    print(conclusion["reason"])
    for trial in found:
        if trial.number == conclusion["winner"] and not trial.round and trial.outcome is not None:
            print(text.result_line(trial.number, found, _objectives(record)))
            print(shlex.join(trial.outcome.argv))
    for line in flag_effect_lines(record.flag_effects, found):
        print(line)


def _score(trial: TrialRecord) -> float:
    return trial.verdict.score or 0.0 if trial.verdict else 0.0


def show(
    number: Annotated[int, typer.Argument(metavar="N", help="Trial's number.")],
    round_: Annotated[int, typer.Option("--round", min=0, help="A re-measurement's round.")] = 0,
    study: StudyName = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is known of one trial: command, figures, the server's own numbers, timings, failure."""
    record, found = read_trials(storage, study)
    trial = next((t for t in found if t.number == number and t.round == round_), None)
    if trial is None:
        raise UserError(f"study {record.name!r} has no trial {number} round {round_}; see `tuner trials`")
    if as_json:
        from dashboards.analysis import trials_frame as frames

        sys.stdout.write(frames.to_json(frames.trials_frame([trial])))
        return
    _print_trial(trial)


def _print_trial(trial: TrialRecord) -> None:
    from dataclasses import asdict

    from tuner.cli.output import text

    print(f"{text.title(trial.number, trial.round)}  {trial.state}  {trial.kind.value}  {trial.label or ''}".rstrip())
    print(f"configuration: {text.config(trial.config)}")
    outcome = trial.outcome
    if outcome is None:
        return
    print(f"command: {shlex.join(outcome.argv)}")
    print("environment: " + " ".join(f"{k}={shlex.quote(v)}" for k, v in sorted(outcome.environment.items())))
    print(f"on {outcome.worker} ({outcome.device}), {outcome.provenance.value}, logs in {outcome.artifacts}")
    if outcome.failure is not None:
        failure = outcome.failure
        print(f"failure: {failure.kind.value} ({failure.culprit.value}) in {failure.phase.value}: {failure.message}")
        if failure.evidence:
            print("  " + failure.evidence.replace("\n", "\n  "))
    if trial.verdict is not None:
        for name, value in trial.verdict.constraints.items():
            print(f"  {'met' if value <= 0 else 'MISSED'}  {name}")
        print(f"score: {text.number(trial.verdict.score)}")
    for name in sorted({name for repeat in outcome.repeats for name in repeat.metrics}):
        values = ", ".join(text.number(repeat.metrics.get(name)) for repeat in outcome.repeats)
        print(f"  {text.metric(name, outcome.metric(name))}" + (f"  ({values})" if len(outcome.repeats) > 1 else ""))
    if outcome.server is not None:
        known = {name: value for name, value in asdict(outcome.server).items() if value is not None}
        print(
            "server: " + ", ".join(f"{k} {text.number(v) if not isinstance(v, str) else v}" for k, v in known.items())
        )
    print("time: " + text.timings(outcome.timings))
