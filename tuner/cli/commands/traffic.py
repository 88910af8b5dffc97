"""`tuner tradeoff` and `tuner requests`: who is served within the SLOs, and who was not served at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.options import AsJson, Storage, StudyName
from tuner.cli.stored import read_study
from tuner.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from dashboards.analysis.tradeoff import Configuration
    from storage.records import StudyRecord, TrialRecord

COLUMNS = 12
"""Configurations that the table on the terminal shows; `--csv` and `--json` have all."""

_AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
_RATES = {
    "rate": "rate\nreq/s",
    "offered": "offered",
    "completed": "completed",
    "p50_ttft_ms": "p50 TTFT\nms",
    "p95_ttft_ms": "p95 TTFT\nms",
    "p99_ttft_ms": "p99 TTFT\nms",
    "p95_tpot_ms": "p95 TPOT\nms",
}


def tradeoff(study: StudyName = None, storage: Storage = None, csv: _AsCsv = False, as_json: AsJson = False) -> None:
    """Show the share of requests within their SLO: classes by configurations, the best of a row marked."""
    if as_json and csv:
        raise UserError("--json and --csv exclude each other; give one")
    stored = read_study(storage, study)
    record, trials = stored.record, list(stored.trials)
    found = _configurations(record, trials)
    from dashboards.analysis import tradeoff as matrix
    from dashboards.analysis.trials_frame import to_csv

    best = matrix.best_by_row(found)
    if as_json:
        print(json.dumps(_document(record, found, best), indent=1))
        return
    if csv:
        sys.stdout.write(to_csv(matrix.share_matrix(found, best)))
        return
    shown = matrix.select_columns(found, COLUMNS)
    title = f"{record.name} ({record.provenance.value}): share of offered requests within their SLO"
    _print(title, _matrix(shown, best))
    print("* highest of its row, chance included")
    if matrix.measured_at_capacity(record):
        print("each configuration was loaded at its own capacity; `tuner trials` has the capacities")
    for each in shown:
        print(f"#{each.number} {each.text}" + (f" ({each.failure})" if each.failure else ""))
    more = matrix.omitted_columns(found, shown)
    if more:
        print(f"{more}: --csv has all")


def _configurations(study: StudyRecord, trials: list[TrialRecord]) -> list[Configuration]:
    from dashboards.analysis import tradeoff as matrix

    _require_classes(study)
    if not matrix.has_class_slos(study):
        raise UserError(
            f"the traffic of study {study.name!r} promises its classes nothing, so no request is within an SLO; "
            "give a new study a traffic file with `slo:`, or see `tuner requests`"
        )
    found = matrix.finished_configurations(study, trials)
    if not found:
        raise UserError(f"study {study.name!r} has no finished trial yet; see `tuner trials`")
    return found


def _require_classes(study: StudyRecord) -> None:
    from dashboards.analysis.tradeoff import request_classes

    if not request_classes(study):
        raise UserError(
            f"the load of study {study.name!r} has no classes of requests; "
            "start a study with traffic, `tuner optimize --workload FILE`, or see `tuner trials`"
        )


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


def _table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD)


def _print(title: str, table: Table) -> None:
    from rich.console import Console

    print(title)
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


def _matrix(shown: list[Configuration], best: dict[str, list[int]]) -> Table:
    from dashboards.analysis.tradeoff import percent

    table = _table()
    table.add_column("class")
    for each in shown:
        table.add_column(("failed\n" if each.state == "failed" else "") + f"#{each.number}", justify="right")
    for row, winners in best.items():
        texts = [(percent(each.shares[row]), each.number in winners) for each in shown]
        table.add_row(row, *(f"[bold]{text}*[/bold]" if marked else f"{text} " for text, marked in texts))
    return table


def requests(
    study: StudyName = None,
    trial: Annotated[int | None, typer.Option(help="Trial's number.  [default: the winner, else 0]")] = None,
    round_: Annotated[int, typer.Option("--round", min=0, help="A re-measurement's round.")] = 0,
    storage: Storage = None,
    csv: _AsCsv = False,
) -> None:
    """Count completed and failed requests by class and prompt length; with a capacity search, latency by rate."""
    stored = read_study(storage, study)
    record, trials = stored.record, list(stored.trials)
    _require_classes(record)
    number = trial if trial is not None else (record.conclusion or {}).get("winner") or 0
    found = next((t for t in trials if (t.number, t.round) == (number, round_)), None)
    if found is None:
        raise UserError(f"study {record.name!r} has no trial {number} round {round_}; see `tuner trials`")
    from dashboards.analysis import trial_files
    from dashboards.analysis.trials_frame import to_csv

    files, rates = _files(found)
    counts = trial_files.requests_by_length_frame(files)
    if csv:
        sys.stdout.write(to_csv(counts))
        return
    loads = "1 load" if len(files) == 1 else f"{len(files)} loads"
    named = f"{record.name} #{number}" + (f" round {round_}" if round_ else "")
    named = f"{named} ({record.provenance.value})"
    _print(f"{named}: requests of {loads} by planned prompt length", _counts(counts))
    assert found.outcome is not None
    if found.outcome.failure is not None:
        print(f"the trial failed: {found.outcome.failure.kind.value}: {found.outcome.failure.message}")
    if rates.is_file():
        _print(f"{named}: latency by offered rate", _rates(trial_files.rate_frame(rates)))


def _files(trial: TrialRecord) -> tuple[list[Path], Path]:
    """Return the trial's records of requests, and where the rates of a capacity search would be.

    Raises:
        UserError: when there are no records, with the reason as far as it is known.
    """
    from dashboards.analysis import trial_files

    name = f"trial {trial.number}" + (f" round {trial.round}" if trial.round else "")
    if trial.outcome is None:
        raise UserError(f"{name} has not finished; see `tuner trials`")
    folder = Path(trial.outcome.artifacts)
    files = trial_files.numbered_files(folder, "requests-*.parquet")
    if files:
        return files, folder / "capacity.csv"
    failure = trial.outcome.failure
    if failure is not None and folder.is_dir():
        raise UserError(
            f"{name} left no record of a request: {failure.kind.value} in {failure.phase.value}; "
            f"see `tuner show {trial.number}`"
        )
    raise UserError(f"{name} has no records of requests in {folder}; look on {trial.outcome.worker}, where it ran")


def _counts(frame: pd.DataFrame) -> Table:
    from pandas import isna

    table = _table()
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

    from dashboards.analysis.tradeoff import percent
    from tuner.cli.output import text

    table = _table()
    for heading in (*_RATES.values(), "within\nSLO"):
        table.add_column(heading, justify="right")
    table.add_column("SLOs", overflow="fold")
    for row in frame.to_dict("records"):
        said = ("held, the knee" if row["is_capacity"] else "held") if row["held"] else f"missed {row['missed']}"
        cells = [text.number(None if isna(row[name]) else row[name]) for name in _RATES]
        table.add_row(
            *cells,
            percent(row["goodput_share"]),
            said.replace("[", "\\["),
            style="bold" if row["is_capacity"] else None,
        )
    return table
