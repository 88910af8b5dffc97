"""`tuner trials`: the trials of a study, one line each."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from tuner.cli.commands.results.stored import StoredStudy, read_study
from tuner.cli.from_server import reads_server
from tuner.cli.help import flag, option
from tuner.cli.options import AsCsv, AsJson, Storage, StudyName
from tuner.errors import UserError

if TYPE_CHECKING:
    from storage.records import TrialRecord

_SCORE, _NUMBER = "score", "number"
_ITL = "p99_itl_ms"
_PLAIN_WIDTH = 140
_HOLES = 8
"""Dropped numbers that the note below the table names."""


@reads_server(lambda values: [values["study"]])
def trials(
    study: StudyName = None,
    sort: Annotated[
        str | None,
        option(
            None,
            "COLUMN",
            "Sort by score or a metric, best first, or by number; without the rounds.",
            shown="number, with rounds",
        ),
    ] = None,
    top: Annotated[int | None, option(None, "INTEGER", "Show only the first trials.", shown="all", least=1)] = None,
    failed: Annotated[bool, flag(None, "Show only trials that failed, with the reason.", "--failed")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """List the trials of a study.

    Shows the score and the objectives of each, and the values that differ from the engine's defaults. Measurements in
    the rounds of the confirmation are listed below their trial.
    """
    if as_json and csv:
        raise UserError("--json and --csv exclude each other; give one")
    stored = read_study(storage, study)
    found: Sequence[TrialRecord] = stored.trials
    if failed:
        found = [trial for trial in found if trial.state == "failed"]
    if sort is not None:
        found = sorted_trials(found, sort)
    found = found[:top]
    if as_json or csv:
        from dashboards.analysis import trials_frame as frames

        frame = frames.trials_frame(found)
        sys.stdout.write(frames.to_json(frame) if as_json else frames.to_csv(frame))
    else:
        _print(stored, found, sort)


def sorted_trials(found: Sequence[TrialRecord], column: str) -> list[TrialRecord]:
    """Return the trials of the search, best first by a column; those without a value are last.

    Raises:
        UserError: for a column that is neither `score`, `number` nor a metric of these trials.
    """
    searched = [trial for trial in found if not trial.round]
    measured = {name for t in searched if t.outcome for repeat in t.outcome.repeats for name in repeat.metrics}
    if column == _NUMBER:
        return sorted(searched, key=lambda trial: trial.number)
    if column != _SCORE and column not in measured:
        near = difflib.get_close_matches(column, [_SCORE, _NUMBER, *measured], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "give score, number or a metric, such as p99_ttft_ms"
        raise UserError(f"--sort {column!r}: no trial has such a column; {hint}")
    return sorted(searched, key=lambda trial: (_worst_last(trial, column), trial.number))


def _worst_last(trial: TrialRecord, column: str) -> float:
    """Return a value that is lower for a better trial."""
    from storage.metrics import Direction, metric

    if column == _SCORE:
        value = trial.verdict.score if trial.verdict else None
        return math.inf if value is None else -value
    value = trial.outcome.metric(column) if trial.outcome else None
    if value is None:
        return math.inf
    return -value if metric(column).direction is Direction.MAXIMIZE else value


def _print(stored: StoredStudy, found: Sequence[TrialRecord], sort: str | None) -> None:
    from tuner.cli.output.parts.console import new_table, show, width_of
    from tuner.cli.output.parts.trial_table import fill_trials
    from tuner.results.cost_lines import price_lines

    names = [objective.metric for objective in stored.objectives]
    if sort not in (None, _SCORE, _NUMBER) and sort not in names:
        names.insert(0, sort)
    if _ITL not in names and any(trial.outcome and trial.outcome.metric(_ITL) is not None for trial in found):
        names.append(_ITL)
    title = f"{stored.record.name} ({stored.record.provenance.value})"
    table = new_table()
    fill_trials(table, found, names, stored.defaults, width_of(_PLAIN_WIDTH), whole=True)
    show(title, table, *price_lines(names, [stored.price]), *_notes(stored), width=_PLAIN_WIDTH)


def _notes(stored: StoredStudy) -> list[str]:
    """Return why numbers are missing, if some are."""
    holes = stored.dropped_numbers
    if not holes:
        return []
    named = ", ".join(map(str, holes[:_HOLES])) + (", …" if len(holes) > _HOLES else "")
    return [f"numbers without a trial are suggestions that were dropped before a launch: {named}"]
