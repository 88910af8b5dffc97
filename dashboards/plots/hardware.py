"""Figures of what a card can do: the roofline, and where the time of an engine step goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dashboards.plots.style import COLORS, GREY, new_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_DECADES = 10.0
"""The roof is drawn from the lowest and to the highest intensity, and by this factor beyond."""


def roofline(
    peak_flops: float,
    bytes_per_s: float,
    predicted: Mapping[str, tuple[float, float]],
    measured: Mapping[str, tuple[float, float]],
) -> go.Figure | None:
    """Draw configurations below the roofline of their card (Williams, Waterman and Patterson, 2009).

        attainable FLOP/s = min(peak, intensity x bandwidth)

    Args:
        peak_flops: arithmetic peak of the card, in FLOP/s.
        bytes_per_s: bandwidth of its memory, in bytes/s.
        predicted: by the name of the configuration, its intensity in FLOP per byte and its rate in FLOP/s.
        measured: the same; a name may have the number of its trial, as `winner #3`.
    """
    kinds = (("predicted", "circle-open", predicted), ("measured", "diamond", measured))
    present = {
        f"{name}, {kind}": (*point, symbol)
        for kind, symbol, points in kinds
        for name, point in points.items()
        if min(point) > 0
    }
    if not present:
        return None
    roles = list(dict.fromkeys(_role(name) for name in (*predicted, *measured)))
    ridge = peak_flops / bytes_per_s
    intensities = [intensity for intensity, _, _ in present.values()]
    low, high = min(*intensities, ridge) / _DECADES, max(*intensities, ridge) * _DECADES
    figure = new_figure(xaxis_title="FLOP per byte of memory traffic", yaxis_title="TFLOP/s")
    figure.add_scatter(
        x=[low, ridge, high],
        y=[low * bytes_per_s / 1e12, peak_flops / 1e12, peak_flops / 1e12],
        mode="lines",
        line={"color": GREY},
        name="roof: what the card can do",
        hoverinfo="skip",
    )
    for name, (intensity, rate, symbol) in present.items():
        share = rate / min(peak_flops, intensity * bytes_per_s)
        color = COLORS[roles.index(_role(name)) % len(COLORS)]
        figure.add_scatter(
            x=[intensity],
            y=[rate / 1e12],
            mode="markers",
            marker={"size": 12, "symbol": symbol, "color": color, "line": {"width": 2, "color": color}},
            name=f"{name}: {share:.0%} of the roof",
            hovertemplate=f"{name}: %{{y:.3g}} TFLOP/s at %{{x:.3g}} FLOP/byte<extra></extra>",
        )
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return figure


def _role(name: str) -> str:
    """Return `winner` for `winner #3, measured`: what has one colour."""
    return name.partition(",")[0].partition(" #")[0]


def time_shares(shares: Mapping[str, Mapping[str, float]]) -> go.Figure | None:
    """Draw where the time of the engine's steps goes, a bar for each configuration.

    Args:
        shares: by the name of the configuration, the share of each part, in [0, 1].
    """
    parts = list(dict.fromkeys(part for found in shares.values() for part in found))
    if not parts:
        return None
    figure = new_figure(barmode="stack", height=150 + 50 * len(shares))
    figure.update_layout(legend={"traceorder": "normal"})
    for place, part in enumerate(parts):
        figure.add_bar(
            y=list(shares),
            x=[found.get(part, 0.0) for found in shares.values()],
            orientation="h",
            name=part,
            marker={"color": COLORS[place % len(COLORS)]},
            hovertemplate=f"{part}: %{{x:.0%}}<extra></extra>",
        )
    figure.update_xaxes(tickformat=".0%", range=[0, 1])
    figure.update_yaxes(autorange="reversed")
    return figure
