"""The pages of `tuner study requests` and `tuner study tradeoff`: what request classes got."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from dashboards import frames
from dashboards import tradeoff as matrix
from records.trials import RATES_FILE, StudyRecord, TrialRecord
from tuner.cli.arguments import command
from tuner.cli.output.parts import new_table, show, width_of
from tuner.errors import UserError, see_trials
from tuner.results import text
from tuner.use_cases.stored import StoredStudy, read_study

_RATES = {
    "rate": "rate\nreq/s",
    "offered": "offered",
    "completed": "completed",
    "p50_ttft_ms": "p50 TTFT\nms",
    "p95_ttft_ms": "p95 TTFT\nms",
    "p99_ttft_ms": "p99 TTFT\nms",
    "p95_tpot_ms": "p95 TPOT\nms",
}


def print_requests(study: str | None, trial: int | None, round_: int, storage: str | None, *, csv: bool) -> None:
    """Print how many requests of each class and length a trial completed; `trial` is the winner, else 0, for None."""
    stored = read_study(storage, study)
    record = stored.record
    _require_classes(record)
    number = trial if trial is not None else (record.conclusion or {}).get("winner") or 0
    found = stored.trial(number, round_)
    files, rates = _files(found)
    counts = frames.requests_by_length_frame(files)
    if csv:
        sys.stdout.write(frames.to_csv(counts))
        return
    named = f"{record.name} {text.title(number, round_)} ({record.provenance.value})"
    benchmarks = text.count(len(files), "benchmark")
    show(f"{named}: requests of {benchmarks} by planned prompt length", _counts(counts))
    assert found.outcome is not None
    if found.outcome.failure is not None:
        print(f"the trial failed: {found.outcome.failure.kind.value}: {found.outcome.failure.message}")
    if rates.is_file():
        show("", f"{named}: latency by request rate", rates_table(frames.rate_frame(rates)))


def _files(trial: TrialRecord) -> tuple[list[Path], Path]:
    """Return the trial's records of requests, and where the rates of a capacity search would be.

    Raises:
        UserError: when there are no records, with the reason as far as it is known.
    """
    name = f"trial {trial.number}" + (f" round {trial.round}" if trial.round else "")
    if trial.outcome is None:
        raise UserError(f"{name} has not finished; {see_trials(trial.study)}")
    folder = Path(trial.outcome.artifacts)
    files = frames.numbered_files(folder, "requests-*.jsonl.gz")
    if files:
        return files, folder / RATES_FILE
    failure = trial.outcome.failure
    if failure is not None and folder.is_dir():
        raise UserError(
            f"{name} has no recorded requests: it failed with {failure.kind.value} in {failure.phase.value}; "
            f"see `{command('study', 'trial', f'{trial.study}#{trial.number}')}`"
        )
    raise UserError(f"{name} has no recorded requests in {folder}; the folder may be on {trial.outcome.worker}")


def _counts(frame: pd.DataFrame) -> Table:
    table = new_table()
    names = list(frame.columns[3:])
    for name in ("class", "tokens", *names):
        table.add_column(name.replace("_", " "), justify="left" if name == "class" else "right")
    for row in frame.itertuples(index=False, name=None):
        name, begin, end, *counts = row
        table.add_row(name, "unknown" if pd.isna(end) else f"{begin}–{end}", *(str(count) for count in counts))
    table.add_section()
    table.add_row("all", "", *(str(frame[name].sum()) for name in names))
    return table


def rates_table(frame: pd.DataFrame) -> Table:
    table = new_table()
    for heading in (*_RATES.values(), "within\nSLO"):
        table.add_column(heading, justify="right")
    table.add_column("SLOs", overflow="fold")
    for row in frame.to_dict("records"):
        outcome = ("held, the capacity" if row["is_capacity"] else "held") if row["held"] else f"missed {row['missed']}"
        cells = [text.number(None if pd.isna(row[name]) else row[name]) for name in _RATES]
        table.add_row(
            *cells,
            matrix.percent(row["goodput_share"]),
            outcome,
            style="bold" if row["is_capacity"] else None,
        )
    return table


COLUMNS, LEAST = 12, 2
"""Most and fewest configurations that the table on the terminal shows; `--csv` and `--json` have all."""

CELL = 7
"""Columns of a configuration's cells, and the blanks between them."""


def print_tradeoff(study: str | None, storage: str | None, *, csv: bool, as_json: bool) -> None:
    """Print the share of each class's requests within its SLO, by configuration."""
    stored = read_study(storage, study)
    found = _configurations(stored.record, list(stored.trials))
    best = matrix.best_by_row(found)
    if as_json:
        configurations = [_document(each) for each in found]
        print(json.dumps({**stored.document, "best": best, "configurations": configurations}, indent=1))
    elif csv:
        sys.stdout.write(frames.to_csv(matrix.share_matrix(found, best)))
    else:
        _print(stored, found, best)


def _print(stored: StoredStudy, found: list[matrix.Configuration], best: dict[str, list[int]]) -> None:
    if all_met := matrix.all_met(found):
        print(
            f"{stored.title}: {all_met}; raise the rate, tighten `slo:`, or find the highest rate with `tuner capacity`"
        )
        return
    room = (width_of() - max(map(len, best))) // CELL
    shown = matrix.select_columns(found, max(LEAST, min(COLUMNS, room)))
    title = f"{stored.title}: share of offered requests within their SLO"
    show(title, _matrix(shown, matrix.marked_by_row(found, best)))
    print("* the highest of its row; a difference may be noise")
    if matrix.measured_at_capacity(stored.record):
        trials = command("study", "trials", stored.record.name)
        print(f"each configuration was measured at its own capacity; `{trials}` lists the capacities")
    for each in shown:
        print(f"#{each.number} {each.text}" + (f" ({each.failure})" if each.failure else ""))
    if more := matrix.omitted_columns(found, shown):
        print(f"{more}: --csv has all")


def _configurations(study: StudyRecord, trials: list[TrialRecord]) -> list[matrix.Configuration]:
    _require_classes(study)
    if not matrix.has_class_slos(study):
        raise UserError(
            f"the request classes of study {study.name!r} have no SLO, so no request can be within one; "
            f"start a study with a traffic file that has `slo:`, or see `{command('study', 'requests', study.name)}`"
        )
    found = matrix.finished_configurations(study, trials)
    if not found:
        raise UserError(f"study {study.name!r} has no finished trial yet; {see_trials(study.name)}")
    return found


def _document(found: matrix.Configuration) -> dict[str, Any]:
    return {
        "trial": found.number,
        "configuration": found.text,
        "state": found.state,
        "failure": found.failure,
        "score": found.score,
        "shares": dict(found.shares),
    }


def _matrix(shown: list[matrix.Configuration], best: dict[str, list[int]]) -> Table:
    table = new_table()
    table.add_column("class", no_wrap=True)
    for each in shown:
        failed = "failed\n" if each.state == "failed" else ""
        table.add_column(f"{failed}#{each.number}", justify="right", no_wrap=True)
    for row, winners in best.items():
        cells = [(matrix.percent(each.shares[row]), each.number in winners) for each in shown]
        table.add_row(row, *(Text(f"{cell}*", style="bold") if marked else f"{cell} " for cell, marked in cells))
    return table


def _require_classes(study: StudyRecord) -> None:
    if not matrix.request_classes(study):
        raise UserError(
            f"the workload of study {study.name!r} has no request classes; "
            f"start a study with traffic, `tuner optimize --workload FILE`, or {see_trials(study.name)}"
        )
