"""Plotly's script and figures as text that a `<script>` element can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go


def plotly_script() -> str:
    """Return Plotly's minified JavaScript, 4.8 MB."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def figure_json(figure: go.Figure) -> str:
    """Return a figure as JSON; `<`, `>` and `&` are escaped, so that no text in it ends the element around it."""
    text: str = figure.to_json(validate=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
