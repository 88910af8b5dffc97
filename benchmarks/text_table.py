"""Prints tables with a caption."""

import textwrap
from collections.abc import Sequence

MISSING = "–"
"""Stands for a value that does not exist."""
CAPTION_WIDTH = 116


def print_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column is aligned to the left, the others to the right.

    Args:
        caption: what to see, with units and the number of measurements.
        header: the names of the columns.
        rows: one text for each column.
    """
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]
    print("\n" + textwrap.fill(caption, CAPTION_WIDTH))
    for row in (header, *rows):
        first, *others = (
            text.rjust(width) if place else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(("  " + first, *others)).rstrip())


def number_text(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, or a dash for None."""
    return MISSING if value is None else f"{value:.{digits}f}"
