"""`tuner studies`: the studies of a database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tuner.cli.from_server import reads_server
from tuner.cli.options import AsJson, Storage
from tuner.use_cases.places import find_study, storage_url

if TYPE_CHECKING:
    from storage.records import StudyRecord, TrialRecord


@reads_server(lambda _: None)
def studies(storage: Storage = None, as_json: AsJson = False) -> None:
    """List the studies of a database.

    Shows model, hardware, number of trials and conclusion of each.
    """
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
        "keeps": conclusion.get("keeps"),
        "keep_defaults": conclusion.get("keep_defaults"),
        "reason": conclusion.get("reason"),
    }


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    from tuner.cli.output.parts.console import new_table, show

    table = new_table()
    for name in ("study", "provenance", "created (UTC)", "model, hardware", "trials", "conclusion"):
        table.add_column(name, justify="right" if name == "trials" else "left", no_wrap=name == "trials")
    for row in rows:
        again = f" + {row['remeasurements']}" if row["remeasurements"] else ""
        table.add_row(
            row["study"],
            row["provenance"],
            row["created_at"][:16].replace("T", " "),
            f"{row['model']} on {row['hardware'] or 'unknown hardware'}",
            f"{row['trials']}{again}",
            row["reason"] or "none yet",
        )
    show(table, width=140)
    if any(row["remeasurements"] for row in rows):
        print("trials: those of the search + measurements of finalists in the rounds")
