"""Parts of pages and of the progress: the console, labelled texts, and tables of trials."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from records.tables import Grid
from records.trials import Config, TrialRecord
from search_spaces import Price
from tuner.results import text
from tuner.results.text import joined, short_configuration

PLAIN_WIDTH = 100
"""Columns of output that is no terminal, where COLUMNS says nothing."""

GAP = 2
"""Blanks between two columns."""

CONTINUED = " \\"
"""Ends a line of a command that goes on."""


def say(line: str) -> None:
    """Print a line on standard error: standard output has results only."""
    print(line, file=sys.stderr, flush=True)


def show(*parts: RenderableType) -> None:
    """Print tables and text, one below the other; text is never read as markup."""
    if sys.stdout.isatty():
        console = Console(highlight=False, markup=False, emoji=False)
        for part in parts:
            _print(console, part)
        return
    width = width_of()
    console = Console(width=width, highlight=False, markup=False, emoji=False, color_system=None, force_terminal=False)
    with console.capture() as captured:
        for part in parts:
            _print(console, part)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _print(console: Console, part: RenderableType) -> None:
    """Print a part; a line that must not be wrapped, such as a command to copy, stays whole."""
    if isinstance(part, ShellCommand):
        for line in part.lines(console.width if console.is_terminal else None):
            console.print(Text(line), soft_wrap=True)
    else:
        console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))


def width_of() -> int:
    """Return the columns of standard output: the terminal's; elsewhere those of COLUMNS, else `PLAIN_WIDTH`."""
    if sys.stdout.isatty():
        return Console().width
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and int(given) else PLAIN_WIDTH


def new_table() -> Table:
    """Return an empty table in the style of all commands: a rule under the headings, two blanks between columns."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)


@dataclass(frozen=True)
class ShellCommand:
    """A command to copy: one line in a file, and on a terminal as many as it needs, without a broken word."""

    words: tuple[str, ...]

    def lines(self, width: int | None) -> list[str]:
        """Return its lines; None: any width."""
        quoted = [shlex.quote(word) for word in self.words]
        if width is None:
            return [" ".join(quoted)]
        found = joined(quoted, width - len("    ") - len(CONTINUED), " ")
        last = len(found) - 1
        return [f"{'    ' * bool(index)}{line}{CONTINUED * (index < last)}" for index, line in enumerate(found)]

    def __rich__(self) -> Text:
        return Text(self.lines(None)[0], no_wrap=True, overflow="ignore")


@dataclass(frozen=True)
class FittedTable:
    """A table in the style of all commands; faint rows are dim, and neither numbers nor the rows' names are cut.

    Where it is too wide, headings break at `_` and `-`, then texts wrap.
    """

    grid: Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._table(options.max_width))

    def _table(self, width: int) -> Table:
        cells = [
            max((_width(row[index]) for row in self.grid.rows), default=0) for index in range(len(self.grid.columns))
        ]
        headings = [column.heading for column in self.grid.columns]
        if sum(map(max, cells, map(_width, headings))) + GAP * (len(cells) - 1) > width:
            headings = [_broken(heading, most) for heading, most in zip(headings, cells, strict=True)]
        wide = sum(map(max, cells, map(_width, headings))) + GAP * (len(cells) - 1) > width
        table = new_table()
        for place, (column, heading, most) in enumerate(zip(self.grid.columns, headings, cells, strict=True)):
            is_whole = column.right or (place == 0 and 2 * most < width)
            least = max(most, _width(heading)) if is_whole else None
            wraps = wide and not is_whole
            justify: JustifyMethod = "right" if column.right else "left"
            table.add_column(heading, justify=justify, no_wrap=not wraps, min_width=least, overflow="fold")
        for index, row in enumerate(self.grid.rows):
            table.add_row(*row, style="dim" if index in self.grid.faint else None)
        return table


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def _broken(heading: str, width: int) -> str:
    """Return a heading in lines that break after `_` and `-` or at a blank, as wide as its cells where it can be."""
    pieces = [piece for line in heading.split("\n") for piece in re.findall(r"[^-_ ]+[-_]?|[-_]| ", line)]
    lines = joined(pieces, max([width, *map(len, pieces)]), "")
    return "\n".join(line.strip() for line in lines)


Rows = list[tuple[str, str]]


def labelled(rows: Sequence[tuple[str, str]], indent: int = 0) -> Table:
    """Return a grid of labels and texts."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(" " * indent + label, value)
    return grid


STATE_STYLES = {"ok": "green", "infeasible": "yellow", "cut": "yellow", "failed": "red", "pending": "dim"}
LEAST_CONFIGURATION = 32
"""Columns below which configurations are left out of the table."""


def fill_trials(
    table: Table,
    trials: Sequence[TrialRecord],
    metrics: Sequence[str],
    defaults: Config,
    width: int,
    price: Price | None,
    *,
    whole: bool = False,
) -> None:
    """Add columns and a row for each trial to an empty table.

    The first metric, what differs from the engine's defaults as far as they are known, and further metrics are shown as
    far as they fit. A trial that failed, was cut short or misses an SLO shows that instead of its configuration. With
    `whole`, the message of a failure is shown whole, over several lines: its end has the engine's remedy.
    """
    titles = [text.title(trial.number, trial.round) for trial in trials]
    left = width - max(map(len, ["trial", *titles])) - len("infeasible") - len("score") - 3 * GAP
    for heading in ("trial", "state", "score"):
        table.add_column(heading, justify="right" if heading == "score" else "left", no_wrap=True)
    shown: list[str] = []
    for name in metrics if any(trial.outcome and trial.outcome.succeeded for trial in trials) else ():
        cells = [text.number(trial.outcome.metric(name) if trial.outcome else None) for trial in trials]
        needed = max(map(len, [name, text.unit(name, price), *cells]))
        if needed > left - (GAP + LEAST_CONFIGURATION if shown else 0):
            break
        left -= needed + GAP
        shown.append(name)
        table.add_column(f"{name}\n{text.unit(name, price)}".rstrip(), justify="right", no_wrap=True)
    room = left if left >= LEAST_CONFIGURATION else 0
    if room:
        table.add_column("differs from the defaults", no_wrap=not whole, max_width=room)
    for title, trial in zip(titles, trials, strict=True):
        table.add_row(Text(title), *_cells(trial, shown), *([_last_cell(trial, defaults, room, whole)] if room else []))


def missed_slos(record: TrialRecord) -> list[str]:
    if record.verdict is None:
        return []
    return [name for name, violation in record.verdict.constraints.items() if violation > 0]


def _cells(trial: TrialRecord, metrics: Sequence[str]) -> list[Text]:
    return [
        Text(trial.state, style=STATE_STYLES[trial.state]),
        Text(text.ABSENT if trial.score is None else f"{trial.score:.3f}"),
        *(Text(text.number(trial.outcome.metric(name) if trial.outcome else None)) for name in metrics),
    ]


def _last_cell(trial: TrialRecord, defaults: Config, room: int, whole: bool) -> Text:
    failure = trial.outcome.failure if trial.outcome else None
    missed = missed_slos(trial)
    if failure is not None:
        line = f"{failure.kind.value}: {text.one_line(failure.message)}"
        return Text(line if whole else text.cut(line, room), style="red")
    if trial.outcome is not None and trial.outcome.cut is not None:
        return Text(text.cut(trial.outcome.cut.reason, room), style="yellow")
    if missed:
        return Text(text.cut(f"misses {', '.join(missed)}", room), style="yellow")
    return Text(short_configuration(trial.config, defaults, room), style="dim")
