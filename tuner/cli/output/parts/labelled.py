"""Labels at the left edge with texts that wrap beside them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

Rows = list[tuple[str, str]]


def labelled(rows: Sequence[tuple[str, str]], indent: int = 0) -> Table:
    """Return a grid of labels and texts."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(" " * indent + label, value)
    return grid
