"""A report as JSON, and the report of that JSON."""

import json

import plotly.graph_objects as go

from dashboards.report.document import document, page_of
from dashboards.report.page import Command, Figure, Page, Section, Table, Tile, render
from records.tables import Column, Grid

GRID = Grid((Column("card", False), Column("servers")), [["h100", "2"], ["l4", "9"]], {1})
PAGE = Page(
    title="Servers for m",
    verdict="2 servers.",
    simulated=True,
    tiles=[Tile("servers", "2", "3 at the pessimistic end")],
    sections=[
        Section("Cost", [Figure("A figure", go.Figure(go.Scatter(y=[1, 2])), "A note.", "A source.")], "predicted"),
        Section("Tables", [Table("Fleets", GRID, "Pale."), Command("A server", "vllm serve m"), "A text."]),
    ],
    subtitle="h100, l4",
)


def test_every_kind_of_part_is_kept() -> None:
    kept = json.loads(json.dumps(document(PAGE)))
    figure, table, command, text = [part for section in kept["sections"] for part in section["parts"]]
    assert (figure["kind"], figure["note"]) == ("figure", "A note. A source.")
    assert (table["rows"], table["faint"]) == ([["h100", "2"], ["l4", "9"]], [1])
    assert command == {"kind": "command", "title": "A server", "text": "vllm serve m"}
    assert text == {"kind": "text", "text": "A text."}
    assert document(page_of(kept)) == kept


def test_the_report_of_a_document_is_that_of_its_page() -> None:
    kept = json.loads(json.dumps(document(PAGE)))
    assert "vllm serve m" in render(page_of(kept))
    for part in ("Servers for m", "2 servers.", "3 at the pessimistic end", "Fleets", "A text."):
        assert part in render(page_of(kept))
