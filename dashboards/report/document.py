"""A report as JSON, which a web page draws and a database keeps; and the report of such a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import plotly.graph_objects as go

from dashboards.report.page import Command, Figure, Page, Section, Table, Tile
from records.tables import Grid


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
    if isinstance(part, str):
        return {"kind": "text", "text": part}
    if isinstance(part, Command):
        return {"kind": "command", "title": part.title, "text": part.text}
    if isinstance(part, Figure):
        note = f"{part.note} {part.source}".strip()
        return {"kind": "figure", "title": part.title, "note": note, "figure": json.loads(part.figure.to_json())}
    return {"kind": "table", "title": part.title, "note": part.note, **part.table.to_dict()}


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
    return Table(kept["title"], Grid.from_dict(kept), kept["note"])
