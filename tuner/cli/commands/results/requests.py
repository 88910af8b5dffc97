"""`tuner requests`: the requests of one trial, by class and length."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tuner.cli.commands.results.stored import read_study, require_classes
from tuner.cli.from_server import reads_server
from tuner.cli.help import option
from tuner.cli.options import AsCsv, Round, Storage, StudyName
from tuner.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from storage.records import TrialRecord

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
    from dashboards.analysis import trial_files
    from dashboards.analysis.trials_frame import to_csv
    from tuner.cli.output.parts.console import show
    from tuner.results import text

    files, rates = _files(found)
    counts = trial_files.requests_by_length_frame(files)
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
        show("", f"{named}: latency by request rate", _rates(trial_files.rate_frame(rates)), width=160)


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
            f"{name} has no recorded requests: it failed with {failure.kind.value} in {failure.phase.value}; "
            f"see `tuner show {trial.number}`"
        )
    raise UserError(f"{name} has no recorded requests in {folder}; the folder may be on {trial.outcome.worker}")


def _counts(frame: pd.DataFrame) -> Table:
    from pandas import isna

    from tuner.cli.output.parts.console import new_table

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

    from dashboards.analysis.tradeoff import percent
    from tuner.cli.output.parts.console import new_table
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
