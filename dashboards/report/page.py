"""The contents of a report, and the HTML file that shows them.

The file needs no network: Plotly's script is embedded once, each figure as its JSON. Colours follow the reader's light
or dark setting; a printed page is light.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

import jinja2
import plotly.graph_objects as go

from dashboards.plots.style import figure_json, plotly_script
from records.tables import Grid

TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class Figure:
    """A figure: its title, what to see in it, and where its numbers come from; `note` and `source` may be empty."""

    title: str
    figure: go.Figure
    note: str = ""
    source: str = ""


@dataclass(frozen=True)
class Table:
    """A table: its title, the table, and what to know about it; `note` may be empty."""

    title: str
    table: Grid
    note: str = ""


@dataclass(frozen=True)
class Command:
    """A command to copy: its purpose and the command."""

    title: str
    text: str


@dataclass(frozen=True)
class Section:
    """A part of a report. `source` says where its numbers come from, under its title."""

    title: str
    parts: Sequence[Figure | Table | Command | str] = ()
    source: str = ""


@dataclass(frozen=True)
class Tile:
    """A number that stands out: what it is, its value, and below it the interval or what it is compared with."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        verdict: the result in a sentence.
        simulated: whether the numbers are predictions, which the page then says on top.
        study: the names of its studies, joined by `, `; empty: the title is the name of its only one.
    """

    title: str
    verdict: str
    simulated: bool
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = field(default_factory=tuple)
    subtitle: str = ""
    study: str = ""


def render(page: Page) -> str:
    """Return the HTML of a report."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.tests["figure"] = lambda part: isinstance(part, Figure)
    environment.tests["table"] = lambda part: isinstance(part, Table)
    environment.tests["command"] = lambda part: isinstance(part, Command)
    environment.filters["slug"] = lambda text: re.sub(r"\W+", "-", text.lower()).strip("-")
    template = environment.from_string(_read(TEMPLATE))
    figures = [part for section in page.sections for part in section.parts if isinstance(part, Figure)]
    return template.render(
        page=page,
        style=_read("report.css"),
        script=_read("report.js"),
        plotly=plotly_script() if figures else "",
        figures=[figure_json(each.figure) for each in figures],
    )


def _read(name: str) -> str:
    return files("dashboards.report").joinpath(name).read_text(encoding="utf-8")
