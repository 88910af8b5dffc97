"""Figures of a sizing: cost against latency, and servers by the hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import plotly.graph_objects as go

from dashboards.plots.style import BLUE, COLORS, GREY, LEAST_WIDTH, new_figure, panels

_NAMES = {"p95_ttft_ms": "p95 TTFT (ms)", "p95_tpot_ms": "p95 TPOT (ms)"}
_SYMBOLS = {"measured": "circle", "corrected": "circle-open", "predicted": "circle-open"}


def cost_against_latency(shapes: Sequence[Mapping[str, Any]], currency: str | None) -> go.Figure | None:
    """Draw a point for each shape with a cost, a larger one where no other one beats it; None without a cost.

    Args:
        shapes: `card`, `shape`, `origin`, `on_front`, `predicted_latencies` and `fleet`, as the JSON document has them.
        currency: of the costs; None: unknown, or not the same for all.
    """
    shown = [each for each in shapes if each["fleet"] and each["fleet"]["cost_per_month"] is not None]
    if not shown:
        return None
    figure = panels(1, len(_NAMES), shared_yaxes=True, horizontal_spacing=0.05)
    cards = list(dict.fromkeys(each["card"] for each in shown))
    for column, (metric, label) in enumerate(_NAMES.items(), 1):
        for card, color in zip(cards, cycle(COLORS), strict=False):
            own = [
                each for each in shown if each["card"] == card and each["predicted_latencies"].get(metric) is not None
            ]
            figure.add_scatter(
                x=[each["predicted_latencies"][metric] for each in own],
                y=[each["fleet"]["cost_per_month"] for each in own],
                mode="markers",
                name=card,
                legendgroup=card,
                showlegend=column == 1,
                marker={
                    "color": color,
                    "size": [12 if each["on_front"] else 7 for each in own],
                    "symbol": [_SYMBOLS[each["origin"]] for each in own],
                    "line": {"width": 2},
                },
                customdata=[f"{each['fleet']['servers']} × {each['shape']} ({each['origin']})" for each in own],
                hovertemplate=f"{card}, %{{customdata}}<br>{label} %{{x:.4g}}, %{{y:,.0f}} a month<extra></extra>",
                row=1,
                col=column,
            )
        figure.update_xaxes(title_text=label, type="log", nticks=5, row=1, col=column)
    figure.update_yaxes(type="log", nticks=5)
    figure.update_yaxes(title_text=f"cost per month ({currency})" if currency else "cost per month", row=1, col=1)
    figure.update_layout(meta={LEAST_WIDTH: 640})
    return figure


def servers_by_hour(hours: Sequence[float], servers: Sequence[int], name: str) -> go.Figure:
    """Draw the servers of each hour as steps over the rate."""
    figure = new_figure()
    places = list(range(len(hours)))
    figure.add_bar(x=places, y=list(servers), name=f"servers ({name})", marker={"color": BLUE})
    figure.add_scatter(x=places, y=list(hours), name="requests/s", yaxis="y2", line={"color": GREY})
    figure.update_layout(
        yaxis={"title": {"text": "servers"}, "rangemode": "tozero"},
        yaxis2={"overlaying": "y", "side": "right", "title": {"text": "requests/s"}, "rangemode": "tozero"},
    )
    figure.update_layout(yaxis2={"tickmode": "auto", "showgrid": False, "automargin": True})
    figure.update_xaxes(title_text="hour from the first request", tickmode="linear", dtick=max(1, len(hours) // 8))
    return figure
