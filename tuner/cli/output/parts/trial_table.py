"""Trials as a table of one line each, in a given width."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from storage.records import Config, TrialRecord
from tuner.results import configuration, text

STATE_STYLES = {"ok": "green", "infeasible": "yellow", "failed": "red", "pending": "dim"}
LEAST_CONFIGURATION = 24
"""Columns below which configurations are left out of the table."""

_GAP = 2


def fill_trials(
    table: Table,
    trials: Sequence[TrialRecord],
    metrics: Sequence[str],
    defaults: Config,
    width: int,
    *,
    whole: bool = False,
) -> None:
    """Add columns and a row for each trial to an empty table.

    Metrics and, after them, what differs from the defaults are shown as far as they fit. A trial that failed or misses
    an SLO shows that instead of its configuration.

    Args:
        table: without columns.
        trials: from top to bottom.
        metrics: names, the most important first.
        defaults: the engine's, as far as they are known.
        width: columns of the whole table.
        whole: whether the message of a failure is shown whole, over several lines: its end has the engine's remedy.
    """
    titles = [text.title(trial.number, trial.round) for trial in trials]
    left = width - max(map(len, ["trial", *titles])) - len("infeasible") - len("score") - 3 * _GAP
    for heading in ("trial", "state", "score"):
        table.add_column(heading, justify="right" if heading == "score" else "left", no_wrap=True)
    shown: list[str] = []
    for name in metrics if any(trial.outcome and trial.outcome.succeeded for trial in trials) else ():
        cells = [text.number(trial.outcome.metric(name) if trial.outcome else None) for trial in trials]
        needed = max(map(len, [name, text.unit(name), *cells]))
        if needed > left:
            break
        left -= needed + _GAP
        shown.append(name)
        table.add_column(f"{name}\n{text.unit(name)}".rstrip(), justify="right", no_wrap=True)
    room = left if left >= LEAST_CONFIGURATION else 0
    if room:
        table.add_column("differs from the defaults", no_wrap=not whole, max_width=room)
    for title, trial in zip(titles, trials, strict=True):
        table.add_row(Text(title), *_cells(trial, shown), *([_last_cell(trial, defaults, room, whole)] if room else []))


def missed_slos(record: TrialRecord) -> list[str]:
    """Return the SLOs that a trial misses."""
    if record.verdict is None:
        return []
    return [name for name, violation in record.verdict.constraints.items() if violation > 0]


def _cells(trial: TrialRecord, metrics: Sequence[str]) -> list[Text]:
    score = trial.verdict.score if trial.verdict else None
    return [
        Text(trial.state, style=STATE_STYLES[trial.state]),
        Text(text.ABSENT if score is None else f"{score:.3f}"),
        *(Text(text.number(trial.outcome.metric(name) if trial.outcome else None)) for name in metrics),
    ]


def _last_cell(trial: TrialRecord, defaults: Config, room: int, whole: bool) -> Text:
    failure = trial.outcome.failure if trial.outcome else None
    missed = missed_slos(trial)
    if failure is not None:
        line = f"{failure.kind.value}: {text.one_line(failure.message)}"
        return Text(line if whole else text.cut(line, room), style="red")
    if missed:
        return Text(text.cut(f"misses {', '.join(missed)}", room), style="yellow")
    return Text(configuration.short(trial.config, defaults, room), style="dim")
