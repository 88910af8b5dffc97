"""The commands that judge what a study measured: `best`, `compare`, `requests` and `tradeoff`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.commands.studies import StoredStudy, read_study, require_classes
from tuner.cli.from_server import reads_server
from tuner.cli.help import flag, option
from tuner.cli.options import AsCsv, AsJson, Round, Storage, StudyName
from tuner.errors import EXIT_OURS, EXIT_SLOS_MISSED, UserError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from dashboards.tradeoff import Configuration
    from records.trials import StudyRecord, TrialRecord
    from tuner.cli.output.pages.compare import Pair, Side


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
    from tuner.cli.output.pages import compare as pages
    from tuner.cli.output.parts import show
    from tuner.results.conclusion import price_lines
    from tuner.study.alternatives import front_of_study

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

    from tuner.cli.output.pages import compare as pages
    from tuner.cli.output.parts import show
    from tuner.results.conclusion import price_lines
    from tuner.study.alternatives import weighed_trials

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

    from tuner.cli.output.pages.optimize import conclusion_parts
    from tuner.cli.output.parts import ShellCommand, show
    from tuner.results.findings import Findings

    conclusion = stored.record.conclusion or {}
    findings = Findings.of(stored.record, stored.trials)
    show(Text(conclusion["reason"], style="bold"), *conclusion_parts(findings))
    if winner is not None and winner.outcome is not None:
        show(f"command of #{winner.number}:", ShellCommand(winner.outcome.argv))


def _print_leaders(stored: StoredStudy) -> None:
    from tuner.cli.commands.studies import sorted_trials
    from tuner.cli.output.parts import PLAIN_WIDTH, fill_trials, new_table, show, width_of
    from tuner.results.conclusion import price_lines

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


FORMS = "a trial (12), a study (NAME), one of its trials (NAME#12), or those of another database (FILE:NAME#12)"


@reads_server(lambda values: _studies([values["one"], *values["others"]], values["study"]))
def compare(
    one: Annotated[str, typer.Argument(metavar="A", help=f"The reference: {FORMS}.", show_default=False)],
    others: Annotated[
        list[str], typer.Argument(metavar="B", help="What is compared with it, one or more.", show_default=False)
    ],
    study: StudyName = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Compare trials or studies with a reference, metric by metric.

    A study stands for its winner, else for the trial that is nearest to its SLOs. Each ratio is B relative to A, as
    `tuner best` shows it where A is the study's reference. Rounds that measured both are compared in pairs; else the
    repeats are compared, and two runs on different days differ by more than their interval.

    tuner compare 0 3 5 8
    """
    from tuner.cli.output.pages.compare import print_pair, print_several

    reference = _side(one, study, storage)
    pairs = [_pair(reference, _side(text, study, storage)) for text in others]
    if as_json:
        found = [
            {
                "b": name,
                "score": pair.score,
                "metrics": {metric: asdict(ratio) for metric, ratio in pair.ratios.items()},
                "flags": pair.flags,
            }
            for name, pair in zip(others, pairs, strict=True)
        ]
        print(json.dumps({"a": one, **(found[0] if len(found) == 1 else {"others": found})}, indent=1))
    elif len(pairs) == 1:
        print_pair(pairs[0])
    else:
        print_several(pairs)


def _pair(one: Side, other: Side) -> Pair:
    from tuner.cli.output.pages.compare import Pair
    from tuner.results.findings import Findings
    from tuner.scoring.rounds import measured_ratio, unpaired

    names = list(dict.fromkeys(metric for side in (one, other) for metric in _metrics(side)))
    both = [Findings.of(side.stored.record, side.stored.trials) for side in (one, other)]
    if one.stored.record == other.stored.record:
        score = both[0].score(other.number, one.number)
        ratios = {name: both[0].beside(other.number, name, one.number) for name in names}
        return Pair(one, other, ratios, _flags(one, other), score)
    before, after = (found.measured(side.number) for found, side in zip(both, (one, other), strict=True))
    ratios = {}
    for name in names:
        benchmarks = [each for found in both for each in found.rounds.benchmarks(name)]
        ratios[name] = measured_ratio(name, before, after, unpaired(name, before, after, benchmarks), 0)
    return Pair(one, other, ratios, _flags(one, other))


def _parts(text: str) -> tuple[str | None, str, str]:
    """Return the database, the study and the number that a text names; None or empty for a part that it lacks."""
    file, colon, rest = text.rpartition(":")
    storage, text = (file, rest) if colon and Path(file).is_file() else (None, text)
    name, hash_, number = text.rpartition("#")
    if not hash_:
        name, number = ("", text) if text.isdigit() else (text, "")
    return storage, name, number


def _studies(texts: Sequence[str], study: str | None) -> list[str | None]:
    """Return the studies that the texts name, without those of other databases."""
    return [name or study for storage, name, _ in map(_parts, texts) if storage is None]


def _side(text: str, study: str | None, storage: str | None) -> Side:
    """Return the trial that a text names."""
    from tuner.cli.output.pages.compare import Side
    from tuner.use_cases.files import exported_of

    file, name, number = _parts(text)
    if file is not None:
        storage, text = file, text.removeprefix(f"{file}:")
    if number and not number.isdigit():
        raise UserError(f"{text!r} names no trial; give {FORMS}")
    stored = read_study(storage, name or study)
    chosen = int(number) if number else exported_of(stored.record.conclusion)
    if chosen is None:
        raise UserError(f"study {stored.record.name!r} has no winner yet; name a trial, such as {text}#0")
    trial = stored.trial(chosen)
    if trial.outcome is None or not trial.outcome.succeeded:
        raise UserError(f"trial {chosen} of study {stored.record.name!r} has no measurements; see `tuner trials`")
    return Side(f"{stored.record.name}#{chosen}", stored, chosen)


def _metrics(side: Side) -> list[str]:
    from tuner.results.conclusion import ITL

    measured = side.stored.trial(side.number).outcome
    always = [ITL] if measured is not None and measured.metric(ITL) is not None else []
    return [*(each.metric for each in side.stored.objectives), *(each.metric for each in side.stored.slos), *always]


def _flags(one: Side, other: Side) -> dict[str, list[Any]]:
    """Return the parameters in which the two differ, with both values; None is the engine's default."""
    from tuner.results.text import configuration_changes

    before, after = (
        configuration_changes(side.stored.trial(side.number).config, side.stored.defaults) for side in (one, other)
    )
    names = dict.fromkeys([*before, *after])
    return {name: [before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)}


_RATES = {
    "rate": "rate\nreq/s",
    "offered": "offered",
    "completed": "completed",
    "p50_ttft_ms": "p50 TTFT\nms",
    "p95_ttft_ms": "p95 TTFT\nms",
    "p99_ttft_ms": "p99 TTFT\nms",
    "p95_tpot_ms": "p95 TPOT\nms",
}


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
    stored = read_study(storage, study)
    record = stored.record
    require_classes(record)
    number = trial if trial is not None else (record.conclusion or {}).get("winner") or 0
    found = stored.trial(number, round_)
    from dashboards import frames
    from dashboards.frames import to_csv
    from tuner.cli.output.parts import show
    from tuner.results import text

    files, rates = _files(found)
    counts = frames.requests_by_length_frame(files)
    if csv:
        sys.stdout.write(to_csv(counts))
        return
    named = f"{record.name} {text.title(number, round_)} ({record.provenance.value})"
    benchmarks = text.count(len(files), "benchmark")
    show(f"{named}: requests of {benchmarks} by planned prompt length", _counts(counts), width=160)
    assert found.outcome is not None
    if found.outcome.failure is not None:
        print(f"the trial failed: {found.outcome.failure.kind.value}: {found.outcome.failure.message}")
    if rates.is_file():
        show("", f"{named}: latency by request rate", _rates(frames.rate_frame(rates)), width=160)


def _files(trial: TrialRecord) -> tuple[list[Path], Path]:
    """Return the trial's records of requests, and where the rates of a capacity search would be.

    Raises:
        UserError: when there are no records, with the reason as far as it is known.
    """
    from dashboards import frames

    name = f"trial {trial.number}" + (f" round {trial.round}" if trial.round else "")
    if trial.outcome is None:
        raise UserError(f"{name} has not finished; see `tuner trials`")
    folder = Path(trial.outcome.artifacts)
    files = frames.numbered_files(folder, "requests-*.parquet")
    if files:
        return files, folder / "capacity.csv"
    failure = trial.outcome.failure
    if failure is not None and folder.is_dir():
        raise UserError(
            f"{name} has no recorded requests: it failed with {failure.kind.value} in {failure.phase.value}; "
            f"see `tuner show {trial.number}`"
        )
    raise UserError(f"{name} has no recorded requests in {folder}; the folder may be on {trial.outcome.worker}")


def _counts(frame: pd.DataFrame) -> Table:
    from pandas import isna

    from tuner.cli.output.parts import new_table

    table = new_table()
    names = list(frame.columns[3:])
    for name in ("class", "tokens", *names):
        table.add_column(name.replace("_", " "), justify="left" if name == "class" else "right")
    for row in frame.itertuples(index=False, name=None):
        name, begin, end, *counts = row
        table.add_row(name, "unknown" if isna(end) else f"{begin}–{end}", *(str(count) for count in counts))
    table.add_section()
    table.add_row("all", "", *(str(frame[name].sum()) for name in names))
    return table


def _rates(frame: pd.DataFrame) -> Table:
    from pandas import isna

    from dashboards.tradeoff import percent
    from tuner.cli.output.parts import new_table
    from tuner.results import text

    table = new_table()
    for heading in (*_RATES.values(), "within\nSLO"):
        table.add_column(heading, justify="right")
    table.add_column("SLOs", overflow="fold")
    for row in frame.to_dict("records"):
        outcome = ("held, the capacity" if row["is_capacity"] else "held") if row["held"] else f"missed {row['missed']}"
        cells = [text.number(None if isna(row[name]) else row[name]) for name in _RATES]
        table.add_row(
            *cells,
            percent(row["goodput_share"]),
            outcome,
            style="bold" if row["is_capacity"] else None,
        )
    return table


COLUMNS = 12
"""Configurations that the table on the terminal shows; `--csv` and `--json` have all."""


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
    if as_json and csv:
        raise UserError("--json and --csv exclude each other; give one")
    stored = read_study(storage, study)
    record = stored.record
    found = _configurations(record, list(stored.trials))
    from dashboards import tradeoff as matrix
    from dashboards.frames import to_csv

    best = matrix.best_by_row(found)
    if as_json:
        print(json.dumps(_document(record, found, best), indent=1))
    elif csv:
        sys.stdout.write(to_csv(matrix.share_matrix(found, best)))
    else:
        _print(record, found, best)


def _print(record: StudyRecord, found: list[Configuration], best: dict[str, list[int]]) -> None:
    from dashboards import tradeoff as matrix
    from tuner.cli.output.parts import show

    study = f"{record.name} ({record.provenance.value})"
    if all_met := matrix.all_met(found):
        print(f"{study}: {all_met}; raise the rate, tighten `slo:`, or find the highest rate with `tuner capacity`")
        return
    shown = matrix.select_columns(found, COLUMNS)
    show(
        f"{study}: share of offered requests within their SLO",
        _matrix(shown, matrix.told_apart(found, best)),
        width=160,
    )
    print("* the highest of its row; a difference may be noise")
    if matrix.measured_at_capacity(record):
        print("each configuration was measured at its own capacity; `tuner trials` lists the capacities")
    for each in shown:
        print(f"#{each.number} {each.text}" + (f" ({each.failure})" if each.failure else ""))
    if more := matrix.omitted_columns(found, shown):
        print(f"{more}: --csv has all")


def _configurations(study: StudyRecord, trials: list[TrialRecord]) -> list[Configuration]:
    from dashboards import tradeoff as matrix

    require_classes(study)
    if not matrix.has_class_slos(study):
        raise UserError(
            f"the request classes of study {study.name!r} have no SLO, so no request can be within one; "
            "start a study with a traffic file that has `slo:`, or see `tuner requests`"
        )
    found = matrix.finished_configurations(study, trials)
    if not found:
        raise UserError(f"study {study.name!r} has no finished trial yet; see `tuner trials`")
    return found


def _document(study: StudyRecord, found: list[Configuration], best: dict[str, list[int]]) -> dict[str, Any]:
    return {
        "study": study.name,
        "provenance": study.provenance.value,
        "best": best,
        "configurations": [
            {"trial": each.number, "configuration": each.text, "state": each.state, "failure": each.failure}
            | {"score": each.score, "shares": dict(each.shares)}
            for each in found
        ],
    }


def _matrix(shown: list[Configuration], best: dict[str, list[int]]) -> Table:
    from rich.text import Text

    from dashboards.tradeoff import percent
    from tuner.cli.output.parts import new_table

    table = new_table()
    table.add_column("class", no_wrap=True)
    for each in shown:
        failed = "failed\n" if each.state == "failed" else ""
        table.add_column(f"{failed}#{each.number}", justify="right", no_wrap=True)
    for row, winners in best.items():
        cells = [(percent(each.shares[row]), each.number in winners) for each in shown]
        table.add_row(row, *(Text(f"{cell}*", style="bold") if marked else f"{cell} " for cell, marked in cells))
    return table
