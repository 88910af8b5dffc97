"""Standard output: tables and text in the terminal's width, or as plain text of at most 100 columns."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tuner.results.grid import Grid
from tuner.results.text import joined

PLAIN_WIDTH = 100
"""Columns of tables where standard output is no terminal."""

GAP = 2
"""Blanks between two columns."""

CONTINUED = " \\"
"""Ends a line of a command that goes on."""


def show(*parts: RenderableType, width: int = PLAIN_WIDTH) -> None:
    """Print tables and text.

    Args:
        parts: what is printed, one below the other; text is never read as markup.
        width: columns where standard output is no terminal.
    """
    if sys.stdout.isatty():
        console = Console(highlight=False, markup=False, emoji=False)
        for part in parts:
            _print(console, part)
        return
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


def width_of(plain_width: int = PLAIN_WIDTH) -> int:
    """Return the columns of standard output: the terminal's, else `plain_width`."""
    return Console().width if sys.stdout.isatty() else plain_width


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
        """Return it as one line."""
        return Text(self.lines(None)[0], no_wrap=True, overflow="ignore")


@dataclass(frozen=True)
class FittedTable:
    """A table in which no number is cut: where it is too wide, headings break at `_`, then texts wrap."""

    grid: Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for a width."""
        yield self._table(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the widths that it can have."""
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
        for column, heading, most in zip(self.grid.columns, headings, cells, strict=True):
            least = max(most, _width(heading)) if column.right else None
            wraps = wide and not column.right
            justify: JustifyMethod = "right" if column.right else "left"
            table.add_column(heading, justify=justify, no_wrap=not wraps, min_width=least, overflow="fold")
        for index, row in enumerate(self.grid.rows):
            table.add_row(*row, style="dim" if index in self.grid.faint else None)
        return table


def as_table(grid: Grid) -> FittedTable:
    """Return a table in the style of all commands; faint rows are dim."""
    return FittedTable(grid)


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def _broken(heading: str, width: int) -> str:
    """Return a heading in lines that break after `_` or at a blank, as wide as the cells below where it can be."""
    pieces = [piece for line in heading.split("\n") for piece in re.findall(r"[^_ ]+_?|_| ", line)]
    lines = joined(pieces, max([width, *map(len, pieces)]), "")
    return "\n".join(line.strip() for line in lines)
