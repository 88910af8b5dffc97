"""Standard output: tables and text in the terminal's width, or as plain text of at most 100 columns."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.results.grid import Grid

PLAIN_WIDTH = 100
"""Columns of tables where standard output is no terminal."""


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
    console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))


def width_of(plain_width: int = PLAIN_WIDTH) -> int:
    """Return the columns of standard output: the terminal's, else `plain_width`."""
    return Console().width if sys.stdout.isatty() else plain_width


def new_table() -> Table:
    """Return an empty table in the style of all commands: a rule under the headings, two blanks between columns."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)


def as_table(grid: Grid) -> Table:
    """Return a table in the style of all commands; cells are not wrapped, and faint rows are dim."""
    table = new_table()
    for column in grid.columns:
        table.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True)
    for index, row in enumerate(grid.rows):
        table.add_row(*row, style="dim" if index in grid.faint else None)
    return table
