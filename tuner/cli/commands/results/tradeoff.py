"""`tuner tradeoff`: which configuration serves which request class within its SLO."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from tuner.cli.commands.results.stored import read_study, require_classes
from tuner.cli.from_server import reads_server
from tuner.cli.options import AsCsv, AsJson, Storage, StudyName
from tuner.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from dashboards.analysis.tradeoff import Configuration
    from storage.records import StudyRecord, TrialRecord

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
    from dashboards.analysis import tradeoff as matrix
    from dashboards.analysis.trials_frame import to_csv

    best = matrix.best_by_row(found)
    if as_json:
        print(json.dumps(_document(record, found, best), indent=1))
    elif csv:
        sys.stdout.write(to_csv(matrix.share_matrix(found, best)))
    else:
        _print(record, found, best)


def _print(record: StudyRecord, found: list[Configuration], best: dict[str, list[int]]) -> None:
    from dashboards.analysis import tradeoff as matrix
    from tuner.cli.output.parts.console import show

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
    from dashboards.analysis import tradeoff as matrix

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

    from dashboards.analysis.tradeoff import percent
    from tuner.cli.output.parts.console import new_table

    table = new_table()
    table.add_column("class", no_wrap=True)
    for each in shown:
        failed = "failed\n" if each.state == "failed" else ""
        table.add_column(f"{failed}#{each.number}", justify="right", no_wrap=True)
    for row, winners in best.items():
        cells = [(percent(each.shares[row]), each.number in winners) for each in shown]
        table.add_row(row, *(Text(f"{cell}*", style="bold") if marked else f"{cell} " for cell, marked in cells))
    return table
