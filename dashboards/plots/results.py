"""Figures of what a study found: its front, the latencies of winner and reference, and the trade-off of classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dashboards.plots.style import BLUE, COLORS, GREY, LEAST_WIDTH, new_figure, panels, with_unit
from dashboards.tradeoff import is_distinction, percent
from records.metrics import LATENCIES, PERCENTILES

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from records.trials import TrialOutcome, TrialRecord

DRAWN = ("ttft", "tpot", "itl")
"""Latencies of a figure; the fourth is the sum of the others."""

MOST_FLAGS = 12
"""Most flags of the figure of their effects."""

APART_ACROSS, APART_UP = 0.12, 0.06
"""Least distances of two labels, as shares of the axes."""


def front(found: Mapping[str, Any]) -> go.Figure:
    """Draw a front: the first metric against each other one, as ratios to the reference with 95 % intervals.

    Axes are logarithmic, as ratios are.

    Args:
        found: `metrics`, `reference` and `points`, as a conclusion has them.
    """
    first, *others = found["metrics"]
    figure = panels(1, len(others), shared_yaxes=True, horizontal_spacing=0.04)
    for column, name in enumerate(others, 1):
        where = {"row": 1, "col": column}
        beaten = [point for point in found["points"] if not point["on_front"]]
        kept = [point for point in found["points"] if point["on_front"]]
        for points, label, color, size in (
            (beaten, "beaten by another trial", GREY, 5),
            (kept, "on the front", BLUE, 9),
        ):
            across, up = ([point["metrics"][key] for point in points] for key in (name, first))
            figure.add_scatter(
                x=[each["ratio"] for each in across],
                y=[each["ratio"] for each in up],
                mode="markers+text" if points is kept else "markers",
                text=_labels(points, list(zip(across, up, strict=True))) if points is kept else None,
                customdata=[f"#{point['number']}" for point in points],
                textposition="top right",
                name=label,
                legendgroup=label,
                showlegend=column == 1,
                marker={
                    "size": size,
                    "color": color,
                    "symbol": ["circle" if point["rounds"] else "circle-open" for point in points],
                },
                error_x=_bars(across) if points is kept else None,
                error_y=_bars(up) if points is kept else None,
                hovertemplate=f"%{{customdata}}: {name} ×%{{x:.3f}}, {first} ×%{{y:.3f}}<extra></extra>",
                **where,
            )
        figure.update_xaxes(title_text=f"{name}, ratio to #{found['reference']}", type="log", nticks=6, **where)
        figure.add_vline(x=1.0, line={"dash": "dot", "color": GREY, "width": 1}, **where)
        figure.add_hline(y=1.0, line={"dash": "dot", "color": GREY, "width": 1}, **where)
    figure.update_yaxes(type="log", nticks=6)
    figure.update_yaxes(title_text=f"{first}, ratio to #{found['reference']}", row=1, col=1)
    return figure


def _labels(points: Sequence[Mapping[str, Any]], places: Sequence[tuple[Any, Any]]) -> list[str]:
    """Return the label of each point, empty where it would cover that of an earlier one."""
    logs = [tuple(math.log(each["ratio"]) for each in pair) for pair in places]
    spans = [max(axis) - min(axis) or 1.0 for axis in zip(*logs, strict=True)]
    shown: list[tuple[float, ...]] = []
    labels = []
    for point, log in zip(points, logs, strict=True):
        place = tuple(each / span for each, span in zip(log, spans, strict=True))
        free = all(abs(place[0] - x) > APART_ACROSS or abs(place[1] - y) > APART_UP for x, y in shown)
        shown += [place] if free else []
        labels.append(f"#{point['number']}" if free else "")
    return labels


def _bars(ratios: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    def ends(each: Mapping[str, float | None]) -> tuple[float, float]:
        low, ratio, high = each["low"], each["ratio"] or 0.0, each["high"]
        return (0.0, 0.0) if low is None or high is None else (ratio - low, high - ratio)

    both = [ends(each) for each in ratios]
    return {
        "type": "data",
        "array": [above for _, above in both],
        "arrayminus": [below for below, _ in both],
        "thickness": 1,
        "color": BLUE,
    }


def flags(effects: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    """Draw the effects of the winner's flags on the score, with intervals, the largest on top; None without any.

    Args:
        effects: `name`, `value`, `ratio`, `low` and `high` of each flag, as a conclusion has them.
    """
    if not effects:
        return None
    shown = effects[:MOST_FLAGS]
    figure = new_figure(xaxis_title="score with the flag over the score with its default", height=140 + 26 * len(shown))
    figure.add_scatter(
        x=[each["ratio"] for each in shown],
        y=[f"{each['name']}={each['value']}" for each in shown],
        mode="markers",
        marker={"size": 9, "color": BLUE},
        error_x=_bars(shown),
        hovertemplate="%{y}: ×%{x:.3f}<extra></extra>",
    )
    figure.add_vline(x=1.0, line={"dash": "dot", "color": GREY, "width": 1})
    figure.update_yaxes(autorange="reversed")
    return figure


def percentiles(outcomes: Mapping[str, TrialOutcome]) -> go.Figure | None:
    """Draw the percentiles of TTFT, TPOT and ITL of several configurations, each the median over its benchmarks.

    Args:
        outcomes: by the name of the configuration. Latencies are in ms.
    """
    shown = [
        (kind, {name: _points(outcome, kind) for name, outcome in outcomes.items()})
        for kind in DRAWN
        if any(_points(outcome, kind) for outcome in outcomes.values())
    ]
    if not shown:
        return None
    figure = panels(1, len(shown), [LATENCIES[kind][0] for kind, _ in shown], horizontal_spacing=0.08)
    for column, (_, lines) in enumerate(shown, 1):
        for place, (name, points) in enumerate(lines.items()):
            figure.add_scatter(
                x=[f"p{percentile}" for percentile, _ in points],
                y=[value for _, value in points],
                mode="lines+markers",
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                line={"color": COLORS[place % len(COLORS)]},
                hovertemplate=f"{name} %{{x}}: %{{y:,.4g}} ms<extra></extra>",
                row=1,
                col=column,
            )
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title_text="ms", col=1)
    return figure


def _points(outcome: TrialOutcome, kind: str) -> list[tuple[int, float]]:
    values = [(percentile, outcome.metric(f"p{percentile}_{kind}_ms")) for percentile in PERCENTILES]
    return [(percentile, value) for percentile, value in values if value is not None]


def side_by_side(
    points: Mapping[str, Mapping[str, tuple[float, float]]], across: str, up: str, currency: str | None = None
) -> go.Figure:
    """Draw the configurations of several studies by two metrics, those of one study joined by a line.

    `points` has by study, then by the name of the configuration, its values of the metrics `across` and `up`.
    `currency` is that of costs; None: unknown, or not the same in all studies.
    """
    figure = new_figure(xaxis_title=with_unit(across, currency), yaxis_title=with_unit(up, currency))
    for place, (study, found) in enumerate(points.items()):
        figure.add_scatter(
            x=[x for x, _ in found.values()],
            y=[y for _, y in found.values()],
            text=list(found),
            mode="lines+markers+text",
            textposition="top center",
            name=study,
            marker={"size": 10},
            line={"color": COLORS[place % len(COLORS)]},
            hovertemplate=f"%{{text}}: {across} %{{x:,.4g}}, {up} %{{y:,.4g}}<extra></extra>",
        )
    return figure


def tradeoff(frame: pd.DataFrame) -> go.Figure | None:
    """Draw the trade-off matrix: for each request class and configuration, the share of requests within their SLO.

    Rows without any share are left out. A star marks the best of a row, see `is_distinction`.

    Args:
        frame: see `dashboards.tradeoff.share_matrix`.
    """
    names = [name for name in frame.columns if name not in ("class", "best")]
    every = [*list(frame["class"])[:-2], "worst class", "all requests"]
    present = [place for place, full in enumerate(frame[names].notna().any(axis=1)) if full]
    if not present:
        return None
    rows = [every[place] for place in present]
    shares = frame[names].to_numpy(dtype="float64")[present]
    measured = frame[names].iloc[present].notna().sum(axis=1)
    best = [each.split() for each in frame["best"].iloc[present]]
    best = [each if is_distinction(len(each), count) else [] for each, count in zip(best, measured, strict=True)]
    numbers = [name.partition(" ")[0] for name in names]
    texts = [
        [percent(share) + ("*" if numbers[column] in best[row] else "") for column, share in enumerate(line)]
        for row, line in enumerate(shares)
    ]
    figure = new_figure(height=190 + 34 * len(rows), meta={LEAST_WIDTH: 170 + 48 * len(names)})
    figure.add_heatmap(
        z=[[None if math.isnan(share) else share for share in line] for line in shares],
        x=numbers,
        y=rows,
        text=texts,
        texttemplate="%{text}",
        customdata=[names] * len(rows),
        zmin=0,
        zmax=1,
        colorscale="Blues",
        colorbar={"tickformat": ".0%"},
        hovertemplate="%{customdata}<br>%{y}: %{text}<extra></extra>",
    )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(type="category", title_text="trial" + "; * is the best of its row" * any(best))
    return figure


def noise(
    trials: Sequence[TrialRecord], metric: str, numbers: Sequence[int], currency: str | None = None
) -> go.Figure | None:
    """Draw every benchmark of the trials of these numbers: those of the search, then those of each round."""
    figure = new_figure(xaxis_title="launch", yaxis_title=with_unit(metric, currency))
    for place, number in enumerate(dict.fromkeys(numbers)):
        own = [t for t in trials if t.number == number and t.outcome is not None and t.outcome.succeeded]
        points = [
            (f"round {trial.round}" if trial.round else "search", repeat.metrics.get(metric))
            for trial in sorted(own, key=lambda trial: trial.round)
            for repeat in (trial.outcome.repeats if trial.outcome is not None else ())
        ]
        present = [(launch, value) for launch, value in points if value is not None]
        if present:
            figure.add_scatter(
                x=[launch for launch, _ in present],
                y=[value for _, value in present],
                mode="markers",
                name=f"#{number}",
                marker={"size": 8, "color": COLORS[place % len(COLORS)]},
                hovertemplate=f"#{number} %{{x}}: %{{y:,.4g}}<extra></extra>",
            )
    rounds = sorted({trial.round for trial in trials if trial.round})
    order = ["search", *(f"round {round_}" for round_ in rounds)]
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=order)
    return figure if figure.data else None
