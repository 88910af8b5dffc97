"""Tables as cells of text, which a terminal, a page and a report show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column: its heading, and whether its cells are aligned to the right as numbers are."""

    heading: str
    right: bool = True


@dataclass
class Grid:
    """A table.

    Attributes:
        columns: from left to right.
        rows: cells by row, one for each column.
        faint: indices of the rows that matter less, such as flags without an effect.
    """

    columns: tuple[Column, ...]
    rows: list[list[str]] = field(default_factory=list)
    faint: set[int] = field(default_factory=set)

    def add(self, *cells: str, faint: bool = False) -> None:
        """Add a row.

        Raises:
            ValueError: if the number of cells is not that of the columns.
        """
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        if faint:
            self.faint.add(len(self.rows))
        self.rows.append([*cells])

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain JSON."""
        return {"columns": [asdict(each) for each in self.columns], "rows": self.rows, "faint": sorted(self.faint)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Grid:
        """Return the table of `to_dict`; other keys are ignored."""
        return cls(tuple(Column(**each) for each in found["columns"]), found["rows"], {*found["faint"]})


def grid(*headings: str, left: tuple[str, ...]) -> Grid:
    """Return an empty table; the columns called `left` are aligned to the left."""
    return Grid(tuple(Column(heading, heading not in left) for heading in headings))
