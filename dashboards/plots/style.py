"""The look of every figure, and figures as text for a page.

Backgrounds are transparent and texts have no colour of their own, so that a page sets both.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from records.metrics import shown_unit


def plotly_script() -> str:
    """Return Plotly's minified JavaScript, 4.8 MB."""
    return str(get_plotlyjs())


def figure_json(figure: go.Figure) -> str:
    """Return a figure as JSON; `<`, `>` and `&` are escaped, so that no text in it ends the element around it."""
    text: str = figure.to_json(validate=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


BLUE, ORANGE, RED, GREEN, PURPLE, GREY = "#4c8bc4", "#e69f00", "#d1495b", "#2e9e6b", "#9b6fc0", "#8a8a8a"
COLORS = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY)
SCALE = "Cividis"
"""A colour scale that colour-blind readers can read."""

HEIGHT = 420
"""Pixels of a figure with one row of panels."""

LEAST_WIDTH = "least_width"
"""Key of a layout's `meta`: pixels below which the figure cannot be read; a narrow page scrolls it."""

PAGE_TEXT = "page text"
"""`meta` of a trace whose texts stand on the page's background, so that the page sets their colour."""


def new_figure(**layout: Any) -> go.Figure:
    return styled(go.Figure(), **layout)


def panels(rows: int, columns: int, titles: Sequence[str] = (), **options: Any) -> go.Figure:
    """Return a figure of several panels, with their titles row by row."""
    figure = styled(make_subplots(rows, columns, subplot_titles=list(titles) or None, **options))
    figure.update_annotations(font={"size": 13})
    if titles:  # the legend stands above them
        figure.update_layout(margin={"t": 62}, legend={"y": 1.0, "yref": "container", "yanchor": "top"})
    return figure


def styled(figure: go.Figure, **layout: Any) -> go.Figure:
    """Give a figure the common look."""
    figure.update_layout(
        template="none",
        colorway=list(COLORS),
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        margin={"l": 60, "r": 20, "t": 40, "b": 50},
        height=HEIGHT,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.04, "x": 0},
        hoverlabel={"align": "left"},
    )
    figure.update_layout(**layout)
    figure.update_xaxes(automargin=True, zeroline=False, gridcolor="rgba(128,128,128,0.25)")
    figure.update_yaxes(automargin=True, zeroline=False, gridcolor="rgba(128,128,128,0.25)")
    return figure


def with_unit(name: str, currency: str | None = None) -> str:
    """Return the name of a metric with its unit, unless the name ends in it: `goodput (req/s)`, `p99_ttft_ms`."""
    unit = shown_unit(name, currency)
    return f"{name} ({unit})" if unit else name


def lines_of(text: str, width: int = 70) -> str:
    """Return text for a hover label: escaped, and in lines of at most `width` characters."""
    return "<br>".join(html.escape(line) for line in textwrap.wrap(text, width)) or "the defaults"
