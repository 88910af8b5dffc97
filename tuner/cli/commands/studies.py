"""`tuner studies`: what a database holds, by the names that `--study` and `--learn-from` take."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tuner.cli.options import AsJson, Storage
from tuner.use_cases.places import find_study, storage_url

if TYPE_CHECKING:
    from storage.records import StudyRecord, TrialRecord


def studies(storage: Storage = None, as_json: AsJson = False) -> None:
    """List the studies of a database: what each is about, how far it came, and what it found."""
    from storage import open_store

    with closing(open_store(storage_url(storage, create=False))) as store:
        find_study(store, None)  # an empty database is refused as by every other command
        rows = [_row(study, store.trials(study.name)) for study in store.studies()]
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        _print_table(rows)


def _row(study: StudyRecord, trials: Sequence[TrialRecord]) -> dict[str, Any]:
    conclusion = study.conclusion or {}
    finished = [trial for trial in trials if trial.outcome is not None]
    return {
        "study": study.name,
        "provenance": study.provenance.value,
        "created_at": study.created_at.isoformat(timespec="seconds"),
        "model": study.premise["model"]["name"],
        "hardware": study.facts.get("hardware"),
        "engine": study.premise["engine"],
        "trials": sum(not trial.round for trial in finished),
        "remeasurements": sum(bool(trial.round) for trial in finished),
        "winner": conclusion.get("winner"),
        "keep_defaults": conclusion.get("keep_defaults"),
        "reason": conclusion.get("reason"),
    }


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("study", "figures", "created (UTC)", "model", "on", "trials", "conclusion"):
        table.add_column(name, justify="right" if name == "trials" else "left", overflow="fold")
    for row in rows:
        more = f" + {row['remeasurements']}" if row["remeasurements"] else ""
        table.add_row(
            escape(row["study"]),
            row["provenance"],
            row["created_at"][:16].replace("T", " "),
            escape(row["model"]),
            row["hardware"] or "–",
            f"{row['trials']}{more}",
            escape(row["reason"] or "none yet"),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
