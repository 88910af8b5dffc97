"""A report as JSON, which a web page draws and a database keeps; and the report of such a document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import plotly.graph_objects as go

from dashboards.report.page import Command, Figure, Page, Section, Table, Tile


def document(page: Page) -> dict[str, Any]:
    """Return a report as JSON."""
    return {
        "title": page.title,
        "subtitle": page.subtitle,
        "verdict": page.verdict,
        "simulated": page.simulated,
        "tiles": [asdict(tile) for tile in page.tiles],
        "sections": [
            {"title": each.title, "source": each.source, "parts": [part_document(part) for part in each.parts]}
            for each in page.sections
        ],
    }


def part_document(part: Figure | Table | Command | str) -> dict[str, Any]:
    """Return a part of a section as JSON."""
    if isinstance(part, str):
        return {"kind": "text", "text": part}
    if isinstance(part, Command):
        return {"kind": "command", "title": part.title, "text": part.text}
    if isinstance(part, Figure):
        note = f"{part.note} {part.source}".strip()
        return {"kind": "figure", "title": part.title, "note": note, "figure": json.loads(part.figure.to_json())}
    return {
        "kind": "table",
        "title": part.title,
        "note": part.note,
        "columns": [{"heading": each.heading, "right": each.right} for each in part.table.columns],
        "rows": [list(row) for row in part.table.rows],
        "faint": sorted(part.table.faint),
    }


@dataclass(frozen=True)
class KeptColumn:
    """A column of a table that was kept."""

    heading: str
    right: bool


@dataclass(frozen=True)
class KeptTable:
    """A table that was kept; see `TableLike`."""

    columns: Sequence[KeptColumn]
    rows: Sequence[Sequence[str]]
    faint: set[int]


def page_of(kept: Mapping[str, Any]) -> Page:
    """Return the report of a document, without the names of its studies."""
    return Page(
        title=kept["title"],
        subtitle=kept["subtitle"],
        verdict=kept["verdict"],
        simulated=kept["simulated"],
        tiles=[Tile(**each) for each in kept["tiles"]],
        sections=[
            Section(each["title"], [_part(part) for part in each["parts"]], each["source"]) for each in kept["sections"]
        ],
    )


def _part(kept: Mapping[str, Any]) -> Figure | Table | Command | str:
    kind = kept["kind"]
    if kind == "text":
        return str(kept["text"])
    if kind == "command":
        return Command(kept["title"], kept["text"])
    if kind == "figure":
        return Figure(kept["title"], go.Figure(kept["figure"]), kept["note"])
    columns = [KeptColumn(**each) for each in kept["columns"]]
    return Table(kept["title"], KeptTable(columns, kept["rows"], {*kept["faint"]}), kept["note"])
