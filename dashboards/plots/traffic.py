"""Figures of the load and of what a card can do: latencies, lengths, rates, the roofline and the time of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboards.plots.results import DRAWN
from dashboards.plots.style import BLUE, COLORS, GREEN, GREY, ORANGE, RED, new_figure, panels
from records.metrics import LATENCIES

_DECADES = 10.0
"""The roof is drawn from the lowest and to the highest intensity, and by this factor beyond."""


def roofline_figure(
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


_PART_COLORS = (*COLORS, "#8c564b", "#17a2a2")
"""One for each part of a step: several GPUs and a cache in the host's memory add parts."""


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
            marker={"color": _PART_COLORS[place % len(_PART_COLORS)]},
            hovertemplate=f"{part}: %{{x:.0%}}<extra></extra>",
        )
    figure.update_xaxes(tickformat=".0%", range=[0, 1])
    figure.update_yaxes(autorange="reversed")
    return figure


POINTS = 200
"""Points of a distribution."""

SAMPLES = 400
"""Most samples of a server's state in a figure."""


def distributions(latencies: Mapping[str, Mapping[str, np.ndarray[Any, Any]]]) -> go.Figure | None:
    """Draw the cumulative distributions of latencies of several configurations.

    Args:
        latencies: by the name of the configuration, then `ttft_ms`, `tpot_ms` and `itl_ms`, each an array of ms.
    """
    kinds = [kind for kind in DRAWN if any(len(each.get(f"{kind}_ms", ())) for each in latencies.values())]
    if not kinds:
        return None
    figure = panels(1, len(kinds), [LATENCIES[kind][0] for kind in kinds], shared_yaxes=True, horizontal_spacing=0.05)
    shares = np.concatenate([np.linspace(0.0, 0.9, POINTS - 60), np.linspace(0.9, 1.0, 61)[1:]])
    for column, kind in enumerate(kinds, 1):
        for place, (name, found) in enumerate(latencies.items()):
            values = found.get(f"{kind}_ms", ())
            if len(values):
                figure.add_scatter(
                    x=np.round(np.quantile(values, shares), 3).tolist(),
                    y=np.round(shares, 4).tolist(),
                    mode="lines",
                    name=name,
                    legendgroup=name,
                    showlegend=column == 1,
                    line={"color": COLORS[place % len(COLORS)], "width": 2},
                    hovertemplate=f"{name}: %{{y:.1%}} within %{{x:,.4g}} ms<extra></extra>",
                    row=1,
                    col=column,
                )
        figure.update_xaxes(type="log", title_text="ms", row=1, col=column)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.01])
    figure.update_yaxes(title_text="share of requests, or of gaps for ITL", row=1, col=1)
    return figure


def lengths(frame: pd.DataFrame) -> go.Figure | None:
    """Draw completed and failed requests by prompt length and answer length.

    Args:
        frame: see `dashboards.frames.length_frame`.
    """
    if frame.empty:
        return None
    prompts = frame["prompt"].unique().tolist()
    answers = frame.sort_values("answer_to")["answer"].unique().tolist()
    figure = panels(1, 2, ("completed", "failed"), shared_yaxes=True, horizontal_spacing=0.06)
    for column, (kind, scale) in enumerate((("completed", "Blues"), ("failed", "Reds")), 1):
        cells = {(row.prompt, row.answer): getattr(row, kind) for row in frame.itertuples()}
        counts = [[cells.get((prompt, answer)) for prompt in prompts] for answer in answers]
        highest = max((count or 0 for line in counts for count in line), default=0)
        figure.add_heatmap(
            z=counts,
            x=prompts,
            y=answers,
            text=[["" if count is None else str(count) for count in line] for line in counts],
            texttemplate="%{text}",
            colorscale=scale,
            zmin=0,
            zmax=max(highest, 1),
            showscale=False,
            hovertemplate=f"prompt %{{x}}, answer %{{y}} tokens: %{{z}} {kind}<extra></extra>",
            row=1,
            col=column,
        )
    figure.update_xaxes(title_text="prompt length (tokens)", type="category")
    figure.update_yaxes(title_text="answer length (tokens)", row=1, col=1)
    figure.update_yaxes(type="category")
    return figure


def rates(frame: pd.DataFrame) -> go.Figure:
    """Draw TTFT and TPOT by request rate, the highest rate at which all SLOs held, and crosses where one did not.

    Args:
        frame: see `dashboards.frames.rate_frame`.
    """
    figure = new_figure(xaxis_title="request rate (requests/s)", yaxis_title="latency of completed requests (ms)")
    figure.update_yaxes(type="log")
    colors = {"p50_ttft_ms": BLUE, "p95_ttft_ms": ORANGE, "p99_ttft_ms": RED, "p95_tpot_ms": GREEN}
    for name, color in colors.items():
        figure.add_scatter(x=frame["rate"], y=frame[name], mode="lines+markers", name=name, line={"color": color})
    missed = frame[~frame["held"]]
    lowest = frame[[*colors]].min().min()
    if len(missed):
        figure.add_scatter(
            x=missed["rate"],
            y=[lowest] * len(missed),
            mode="markers",
            name="missed an SLO",
            marker={"symbol": "x", "color": RED},
            text=missed["missed"],
            hovertemplate="%{x:.4g} requests/s missed %{text}<extra></extra>",
        )
    for rate in dict.fromkeys(frame.loc[frame["is_capacity"], "rate"]):
        figure.add_vline(
            x=rate, line={"dash": "dash", "width": 1.5, "color": GREEN}, annotation_text=f"capacity {rate:.4g}"
        )
    return figure


def server(frames: Mapping[str, pd.DataFrame]) -> go.Figure | None:
    """Draw requests in the server, the use of its KV cache and preemptions over time, of several configurations.

    Args:
        frames: by the name of the configuration, see `dashboards.frames.server_frame`.
    """
    present = {name: frame for name, frame in frames.items() if len(frame)}
    if not present:
        return None
    titles = ("running requests", "waiting requests", "KV cache in use", "preemptions so far")
    figure = panels(2, 2, titles, shared_xaxes=True, horizontal_spacing=0.09, vertical_spacing=0.14)
    figure.update_layout(height=520)
    for place, (name, frame) in enumerate(present.items()):
        thin = frame.iloc[:: max(1, -(-len(frame) // SAMPLES))]
        for index, column in enumerate(("running", "waiting", "kv_usage", "preemptions")):
            figure.add_scatter(
                x=thin["at_s"].round(2).tolist(),
                y=thin[column].round(4).tolist(),
                mode="lines",
                name=name,
                legendgroup=name,
                showlegend=index == 0,
                line={"color": COLORS[place % len(COLORS)], "width": 1.5},
                row=index // 2 + 1,
                col=index % 2 + 1,
            )
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(tickformat=".2~%", row=2, col=1)
    figure.update_xaxes(title_text="benchmark time (s)", row=2)
    return figure
