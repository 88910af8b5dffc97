"""Figures of a study's search: its progress, which parameters matter, which values were tried, and what failed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from dashboards.plots.style import (
    BLUE,
    GREEN,
    GREY,
    HEIGHT,
    LEAST_WIDTH,
    ORANGE,
    PAGE_TEXT,
    RED,
    SCALE,
    lines_of,
    new_figure,
    panels,
)
from records.trials import Config, JsonScalar, TrialKind, TrialRecord

SLICES = 8
"""Most parameters of the figure of slices."""

LANES = 10
"""Most parameters of the parallel coordinates."""

LANE_WIDTH = 90
"""Least pixels between two parameters of the parallel coordinates."""

TICK_WIDTH = 8
"""Pixels of a character at an axis of the parallel coordinates."""

FAILED_VALUES = 20
"""Most values of the map of failures."""

CATEGORIES = 8
"""Most values of a number that are drawn as categories."""

WIDE = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""

FEW_TRIALS = 10
"""Up to this many trials, Plotly would put ticks between their numbers."""

MISSED = "missed an SLO"


def searched(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the finished trials without the rounds and without searches for the capacity."""
    return [
        trial
        for trial in trials
        if not trial.round and trial.outcome is not None and trial.kind is not TrialKind.CAPACITY
    ]


def _scored(trials: Sequence[TrialRecord]) -> list[tuple[TrialRecord, float]]:
    return [(trial, trial.score) for trial in searched(trials) if trial.score]


def progress(trials: Sequence[TrialRecord]) -> go.Figure | None:
    """Draw the score of each trial, the best so far, and crosses for failed trials; None without any score."""
    every = searched(trials)
    scored = _scored(trials)
    if not scored:
        return None
    figure = new_figure(xaxis_title="trial", yaxis_title="score (the reference scores 1)")
    for state, name, symbol, color in (
        ("ok", "meets the SLOs", "circle", BLUE),
        ("infeasible", MISSED, "circle-open", ORANGE),
    ):
        group = [(trial, score) for trial, score in scored if trial.state == state]
        figure.add_scatter(
            x=[trial.number for trial, _ in group],
            y=[score for _, score in group],
            mode="markers",
            marker={"symbol": symbol, "color": color, "size": 9, "line": {"width": 2, "color": color}},
            name=name,
            text=[_hover(trial) for trial, _ in group],
            hovertemplate="#%{x}, score %{y:.3f}<br>%{text}<extra></extra>",
        )
    _add_failures(figure, every, min(score for _, score in scored))
    _add_cuts(figure, every)
    best, steps = 0.0, []
    for trial, score in scored:
        best = max(best, score if trial.state == "ok" else 0.0)
        steps.append((trial.number, best or None))
    figure.add_scatter(
        x=[number for number, _ in steps],
        y=[value for _, value in steps],
        mode="lines",
        line={"shape": "hv", "color": GREEN, "width": 1.5},
        name="best so far",
        hoverinfo="skip",
    )
    figure.add_hline(y=1.0, line={"dash": "dot", "color": GREY, "width": 1})
    first, last = min(trial.number for trial in every), max(trial.number for trial in every)
    if last - first < FEW_TRIALS:
        figure.update_xaxes(dtick=1, range=[first - 0.5, last + 0.5])
    return figure


def _add_failures(figure: go.Figure, trials: Sequence[TrialRecord], lowest: float) -> None:
    failed = [trial for trial in trials if trial.state == "failed"]
    if not failed:
        return
    figure.add_scatter(
        x=[trial.number for trial in failed],
        y=[min(lowest, 1.0)] * len(failed),
        mode="markers",
        marker={"symbol": "x", "color": RED, "size": 9},
        name="failed",
        text=[f"{_failure(trial)}<br>{_hover(trial)}" for trial in failed],
        hovertemplate="#%{x} failed: %{text}<extra></extra>",
    )


def _add_cuts(figure: go.Figure, trials: Sequence[TrialRecord]) -> None:
    """Add the trials that were cut short, at the bounds of their scores."""
    found = [(t, t.outcome.cut) for t in trials if t.outcome is not None and t.outcome.cut is not None]
    bounded = [(trial, cut, cut.score_at_most) for trial, cut in found if cut.score_at_most is not None]
    if bounded:
        figure.add_scatter(
            x=[trial.number for trial, _, _ in bounded],
            y=[bound for _, _, bound in bounded],
            mode="markers",
            marker={"symbol": "triangle-down-open", "color": GREY, "size": 9},
            name="cut short: at most",
            text=[f"{cut.reason}<br>{_hover(trial)}" for trial, cut, _ in bounded],
            hovertemplate="#%{x} was cut short: %{text}<extra></extra>",
        )


def _failure(trial: TrialRecord) -> str:
    failure = trial.outcome.failure if trial.outcome is not None else None
    return "no result" if failure is None else failure.kind.value


def _hover(trial: TrialRecord) -> str:
    return lines_of(" ".join(f"{name}={value}" for name, value in trial.config.items() if value is not None))


def importance(shares: Mapping[str, tuple[float, float, float]]) -> go.Figure | None:
    """Draw the importance of parameters as bars, the largest on top.

    Args:
        shares: by parameter the share of the score's variance, in [0, 1], and the ends of its interval.
    """
    if not shares:
        return None
    ranked = sorted(shares.items(), key=lambda item: item[1][0])[-12:]
    values = [share for _, (share, _, _) in ranked]
    figure = new_figure(xaxis_title="share of the score's variance", height=140 + 26 * len(ranked))
    figure.update_xaxes(tickformat=".0%", rangemode="tozero")
    figure.add_bar(
        y=[name for name, _ in ranked],
        x=values,
        orientation="h",
        marker={"color": BLUE},
        error_x={
            "type": "data",
            "array": [high - share for _, (share, _, high) in ranked],
            "arrayminus": [share - low for _, (share, low, _) in ranked],
            "color": GREY,
            "thickness": 1.2,
        },
        hovertemplate="%{y}: %{x:.1%}<extra></extra>",
    )
    return figure


def varied(trials: Sequence[TrialRecord], ranked: Sequence[str] = ()) -> list[str]:
    """Return the parameters that took more than one value, those of `ranked` first, the others by number of values."""
    values: dict[str, set[JsonScalar]] = {}
    for trial in searched(trials):
        for name, value in trial.config.items():
            values.setdefault(name, set()).add(value)
    names = [name for name, found in values.items() if len(found | {None}) > 1]
    rest = sorted((name for name in names if name not in ranked), key=lambda name: -len(values[name]))
    return [*(name for name in ranked if name in names), *rest]


def slices(
    trials: Sequence[TrialRecord], ranked: Sequence[str] = (), defaults: Config | None = None
) -> go.Figure | None:
    """Draw the score against the values of each parameter, the most important ones.

    A trial that leaves a parameter to the engine is drawn at the engine's default, where it is known, else at `unset`.

    `ranked` are parameters, the most important first; `defaults` are the engine's, as far as they are known.
    """
    names = varied(trials, ranked)[:SLICES]
    scored = _scored(trials)
    if not names or not scored:
        return None
    columns = min(4, len(names))
    rows = math.ceil(len(names) / columns)
    figure = panels(rows, columns, names, shared_yaxes=True, horizontal_spacing=0.03, vertical_spacing=0.22)
    figure.update_layout(height=90 + 250 * rows, showlegend=False)
    for index, name in enumerate(names):
        values = [trial.config.get(name) for trial, _ in scored]
        values = [(defaults or {}).get(name) if value is None else value for value in values]
        where = {"row": index // columns + 1, "col": index % columns + 1}
        numeric = len({*values}) > CATEGORIES and all(_is_number(value) for value in values)
        figure.add_scatter(
            x=values if numeric else [_label(value) for value in values],
            y=[score for _, score in scored],
            mode="markers",
            marker={"size": 7, "color": [BLUE if trial.state == "ok" else ORANGE for trial, _ in scored]},
            text=[f"#{trial.number}" for trial, _ in scored],
            hovertemplate="%{text}, %{x}: score %{y:.3f}<extra></extra>",
            **where,
        )
        figure.update_xaxes(**_value_axis(values, numeric=numeric), **where)
    figure.update_yaxes(title_text="score", col=1)
    return figure


def _value_axis(values: Sequence[JsonScalar], *, numeric: bool) -> dict[str, Any]:
    """Return the axis of a parameter: its values in order; for many numbers a scale, a log one over a wide range."""
    if numeric:
        numbers = [float(value) for value in values if value is not None]
        wide = min(numbers) > 0 and max(numbers) > WIDE * min(numbers)
        return {"type": "log" if wide else "linear", "nticks": 5}
    order = [_label(value) for value in sorted({*values}, key=_place)]
    return {"type": "category", "categoryorder": "array", "categoryarray": order, "tickangle": -40}


def parallel(trials: Sequence[TrialRecord], ranked: Sequence[str] = ()) -> go.Figure | None:
    """Draw each trial with a score as a line through its values, coloured by the score; see `slices`."""
    names = varied(trials, ranked)[:LANES]
    scored = _scored(trials)
    if not names or len(scored) < 2:
        return None
    scores = [score for _, score in scored]
    lanes = [_lane(name, [trial.config.get(name) for trial, _ in scored]) for name in names]
    line = {"color": scores, "colorscale": SCALE, "showscale": True, "colorbar": {"title": {"text": "score"}}}
    widest = max(len(str(tick)) for tick in lanes[0]["ticktext"])  # the first axis has its labels to its left
    left = max(60, 12 + TICK_WIDTH * widest)
    layout = {"margin": {"l": left, "r": 40, "t": 90, "b": 40}, "meta": {LEAST_WIDTH: LANE_WIDTH * (len(names) + 2)}}
    figure = new_figure(height=HEIGHT + 60, **layout)
    figure.add_trace(go.Parcoords(line=line, dimensions=[*lanes, {"label": "score", "values": scores}], labelangle=-25))
    return figure


def _lane(name: str, values: Sequence[JsonScalar]) -> dict[str, Any]:
    order = sorted({*values}, key=_place)
    places = {value: place for place, value in enumerate(order)}
    ticks = order if len(order) <= 12 else order[:: math.ceil(len(order) / 12)]
    return {
        "label": name,
        "values": [places[value] for value in values],
        "tickvals": [places[value] for value in ticks],
        "ticktext": [_label(value) for value in ticks],
    }


def _place(value: JsonScalar) -> tuple[int, float, str]:
    """Return a sorting key: None, then numbers, then texts."""
    if value is None:
        return 0, 0.0, ""
    return (1, float(value), "") if _is_number(value) else (2, 0.0, str(value))


def _is_number(value: JsonScalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _label(value: JsonScalar) -> str:
    return "unset" if value is None else str(value)


def failures(trials: Sequence[TrialRecord]) -> go.Figure | None:
    """Draw how many of the trials with a value failed, by kind of failure; None where no trial failed.

    The values whose trials failed most often are on top, by failed / (trials + 2): a single failed trial says little
    about a value. A missed SLO counts as a kind.
    """
    every = searched(trials)
    kinds = {t.number: _failure(t) if t.state == "failed" else MISSED for t in every if t.state not in ("ok", "cut")}
    if not any(trial.state == "failed" for trial in every):
        return None
    tried = Counter((name, _label(value)) for trial in every for name, value in trial.config.items())
    bad = Counter((n, _label(v)) for trial in every if trial.number in kinds for n, v in trial.config.items())
    worst = sorted(bad, key=lambda each: -bad[each] / (tried[each] + 2))[:FAILED_VALUES][::-1]
    columns = sorted(set(kinds.values()), key=lambda kind: (kind == MISSED, kind))
    cells, texts = [], []
    for name, value in worst:
        of = [t for t in every if name in t.config and _label(t.config[name]) == value]
        counts = [sum(kinds.get(t.number) == kind for t in of) for kind in columns]
        cells.append([count / len(of) for count in counts])
        texts.append([f"{count} of {len(of)}" if count else "" for count in counts])
    figure = new_figure(height=150 + 24 * len(worst))
    figure.add_heatmap(
        z=cells,
        x=[kind.replace("_", " ") for kind in columns],
        y=[f"{name}={value}" for name, value in worst],
        text=texts,
        texttemplate="%{text}",
        meta=PAGE_TEXT,
        zmin=0,
        zmax=1,
        colorscale=[[0, "rgba(209,73,91,0)"], [1, RED]],
        colorbar={"title": {"text": "share"}, "tickformat": ".0%"},
        hovertemplate="%{y}: %{text} trials, %{x}<extra></extra>",
    )
    return figure
