"""Figures of traffic: shares of requests within SLO, failed requests, latency by request rate, the server's state.

Each function draws one frame of `dashboards.analysis`, writes it as a PNG and returns the figure. matplotlib is
imported when the first figure is drawn; no display is needed.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dashboards.analysis.tradeoff import percent
from dashboards.analysis.trial_files import lower_edge

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COMPLETED_COLOR = "#4878a8"
_STATUS_COLORS = {
    "timed_out": "#d1495b",
    "refused": "#edae49",
    "connection_lost": "#7d4f9e",
    "incomplete": "#e377c2",
    "malformed": "#8c564b",
    "not_sent": "#5c5c5c",
}
_PERCENTILE_COLORS = {"p50_ttft_ms": "#4878a8", "p95_ttft_ms": "#edae49", "p99_ttft_ms": "#d1495b"}


@contextmanager
def figure_file(target: Path, title: str, width: float, height: float, *, constrained: bool = True) -> Iterator[Figure]:
    """Yield an empty figure, and write it as a PNG after the block. A `$` in a text is literal.

    Args:
        target: the file to write.
        title: title above all axes.
        width: in inches.
        height: in inches.
        constrained: fit the axes to their texts, which takes a third of the time of a small figure.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"text.parse_math": False, "font.size": 10}):
        figure = Figure(figsize=(width, height), layout="constrained" if constrained else None)
        FigureCanvasAgg(figure)
        figure.suptitle(title, fontsize=11)
        yield figure
        figure.savefig(target, dpi=120, format="png")


def draw_tradeoff(frame: pd.DataFrame, target: Path, title: str, labels: Sequence[str] | None = None) -> Figure:
    """Draw the trade-off matrix: a darker cell is a higher share, a grey one is absent, the highest of a row is framed.

    Args:
        frame: see `dashboards.analysis.tradeoff.share_matrix`.
        target: the file to write.
        title: title of the figure.
        labels: configuration of each column for the list below the matrix; None takes the names of the columns.
    """
    names = [name for name in frame.columns if name not in ("class", "best")]
    numbers = [name.partition(" ")[0] for name in names]
    shares = frame[names].to_numpy(dtype="float64")
    rows = [*list(frame["class"])[:-2], "worst class", "all requests"]
    heights = [0.5 + 0.42 * len(frame), 0.2 + 0.18 * len(names)]
    width = max(9.5, 2.0 + 0.7 * len(names))
    with figure_file(target, title, width, 1.2 + sum(heights)) as figure:
        axes, legend = figure.subplots(2, 1, height_ratios=heights)
        axes.set_facecolor("#d9d9d9")
        image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
        for row, best in enumerate(frame["best"]):
            for column, number in enumerate(numbers):
                _cell(axes, row, column, float(shares[row, column]), number in best.split())
        axes.set_xticks(range(len(names)), numbers)
        axes.set_yticks(range(len(frame)), rows)
        axes.set_ylabel("request class")
        axes.set_xlabel("configuration, by the number of its trial")
        bar = figure.colorbar(image, ax=axes, format=lambda value, _: f"{100 * value:g}%", pad=0.01)
        bar.set_label("requests within their SLO")
        legend.axis("off")
        for index, label in enumerate(labels or names):
            text = textwrap.shorten(label, round(11 * width), placeholder=" …")
            legend.text(0.0, 1 - (index + 0.5) / len(names), text, fontsize=9, va="center").set_in_layout(False)
    return figure


def _cell(axes: Axes, row: int, column: int, share: float, best: bool) -> None:
    from matplotlib.patches import Rectangle

    color, weight = "white" if share > 0.6 else "black", "bold" if best else "normal"
    text = percent(share) + ("*" if best else "")
    axes.text(column, row, text, ha="center", va="center", color=color, fontweight=weight)
    if best:
        axes.add_patch(Rectangle((column - 0.47, row - 0.45), 0.94, 0.9, fill=False, edgecolor="#d1495b", lw=2))


def draw_requests(frame: pd.DataFrame, target: Path, title: str) -> Figure:
    """Draw offered requests by prompt length: a panel for each request class, a bar for each bin, stacked by status.

    Args:
        frame: see `dashboards.analysis.trial_files.requests_by_length_frame`.
        target: the file to write.
        title: title of the figure.
    """
    classes = list(dict.fromkeys(frame["class"]))
    bins = _bins(frame["to"])
    failures = [name for name in frame.columns[4:] if name != "completed"]
    colors = {"completed": _COMPLETED_COLOR} | {name: _STATUS_COLORS.get(name, "#b0b0b0") for name in failures}
    columns = min(2, len(classes)) or 1
    rows = math.ceil(len(classes) / columns) or 1
    width = max(4.6, 1.6 + 0.75 * len(bins))
    with figure_file(target, title, columns * width, 1.2 + 2.7 * rows) as figure:
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        for name, axes in zip(classes, panels, strict=False):
            _stack(axes, frame[frame["class"] == name], bins, colors)
            axes.set_title(f"request class {name}")
            axes.set_ylabel("offered requests")
            axes.set_xlabel("planned prompt length (tokens)")
        for axes in panels[len(classes) :]:
            axes.remove()
        if classes:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _bins(uppers: pd.Series) -> dict[int | None, str]:
    """Return the last length of each bin to its label, empty bins in between included; unknown lengths come last."""
    lengths = [int(upper) for upper in uppers.dropna()]
    bins: dict[int | None, str] = {}
    upper = min(lengths, default=0)
    while lengths and upper <= max(lengths):
        bins[upper] = f"{lower_edge(upper)}–{upper}"
        upper *= 2
    return bins | ({None: "unknown"} if uppers.isna().any() else {})


def _stack(axes: Axes, counts: pd.DataFrame, bins: dict[int | None, str], colors: dict[str, str]) -> None:
    """Draw the bars of one request class, each with its number of offered requests and of failed ones above it."""
    order = list(bins)
    places = [order.index(None if pd.isna(upper) else int(upper)) for upper in counts["to"]]
    bottom = [0] * len(counts)
    for status, color in colors.items():
        axes.bar(places, list(counts[status]), bottom=bottom, color=color, label=status.replace("_", " "))
        bottom = [below + count for below, count in zip(bottom, counts[status], strict=True)]
    for place, offered, completed in zip(places, counts["offered"], counts["completed"], strict=True):
        failed = offered - completed
        text = f"{offered}\n{failed} failed" if failed else f"{offered}"
        axes.annotate(text, (place, offered), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, 1.3 * max(counts["offered"], default=1))  # room for the numbers above the bars
    axes.set_xlim(-0.6, len(bins) - 0.4)
    axes.set_xticks(range(len(bins)), list(bins.values()), fontsize=8, rotation=30 if len(bins) > 5 else 0)
    axes.spines[["top", "right"]].set_visible(False)


def draw_rates(frame: pd.DataFrame, target: Path, title: str) -> Figure:
    """Draw TTFT by request rate, with the capacity as a line and a cross at each rate that missed an SLO.

    Args:
        frame: see `dashboards.analysis.trial_files.rate_frame`.
        target: the file to write.
        title: title of the figure.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    with figure_file(target, title, 8.0, 4.8) as figure:
        axes = figure.add_subplot()
        for name, color in _PERCENTILE_COLORS.items():
            axes.plot(frame["rate"], frame[name], marker="o", ms=4, color=color, label=f"{name.partition('_')[0]} TTFT")
        for rate in dict.fromkeys(frame.loc[frame["is_capacity"], "rate"]):
            axes.axvline(rate, color="black", linestyle="--", lw=1.2, label=f"capacity: {rate:.4g} requests/s")
        missed = frame.loc[~frame["held"], "rate"]
        if len(missed):
            bottom = axes.get_xaxis_transform()
            axes.plot(missed, [0.03] * len(missed), "x", color="black", mew=2, transform=bottom, label="missed an SLO")
        if not frame[list(_PERCENTILE_COLORS)].notna().to_numpy().any():
            axes.text(0.5, 0.5, "no request completed at any rate", ha="center", transform=axes.transAxes)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("request rate (requests/s)")
        axes.set_ylabel("time to first token of completed requests (ms)")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def draw_server(frame: pd.DataFrame, target: Path, title: str) -> Figure:
    """Draw running and waiting requests and the use of the KV cache over time; dotted lines separate the benchmarks.

    Args:
        frame: see `dashboards.analysis.trial_files.server_frame`.
        target: the file to write.
        title: title of the figure.
    """
    with figure_file(target, title, 9.0, 5.0, constrained=False) as figure:  # one for every trial
        figure.subplots_adjust(left=0.08, right=0.98, bottom=0.1, top=0.87, hspace=0.1)
        above, below = figure.subplots(2, 1, sharex=True)
        for index, part in enumerate(part for _, part in frame.groupby("benchmark")):
            labels = {"running": "running", "waiting": "waiting"} if index == 0 else {}
            for name, color in (("running", _COMPLETED_COLOR), ("waiting", "#d1495b")):
                above.plot(part["at_s"], part[name], color=color, label=labels.get(name), lw=1.2)
            below.plot(part["at_s"], 100 * part["kv_usage"], color="#2e7d5b", lw=1.2)
            for axes in (above, below):
                if index != 0:
                    label = "next benchmark" if index == 1 and axes is above else None
                    axes.axvline(float(part["at_s"].iloc[0]), color="grey", linestyle=":", lw=1, label=label)
        above.set_ylabel("requests")
        if len(frame):
            above.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
        below.set_ylabel("KV cache in use (%)")
        below.set_xlabel("benchmark time (s)")
        for axes in (above, below):
            axes.set_ylim(bottom=0)
            axes.margins(x=0.01)
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_front(front: Mapping[str, Any], target: Path, title: str) -> Figure:
    """Draw the front of a study: the first metric against each other one, as ratios to the reference with intervals.

    Trials that another one beats in every metric are grey. The reference is at 1, 1.

    Args:
        front: `metrics` and `points`, as a conclusion has them.
        target: the file to write.
        title: title of the figure.
    """
    first, *others = front["metrics"]
    with figure_file(target, title, 1.0 + 4.6 * len(others), 4.8) as figure:
        panels = figure.subplots(1, len(others), squeeze=False, sharey=True)[0]
        for axes, name in zip(panels, others, strict=True):
            for point in sorted(front["points"], key=lambda point: bool(point["on_front"])):
                _front_point(axes, point, name, first)
            axes.set_xlim(*_limits(front["points"], name))
            axes.set_ylim(*_limits(front["points"], first))
            axes.axvline(1.0, color="black", lw=0.8, linestyle=":")
            axes.axhline(1.0, color="black", lw=0.8, linestyle=":")
            axes.set_xlabel(f"{name}, ratio to #{front['reference']}")
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(f"{first}, ratio to #{front['reference']}")
    return figure


def _front_point(axes: Axes, point: Mapping[str, Any], across: str, up: str) -> None:
    """Draw one trial; a hollow mark was measured by the search alone."""
    x, y = (point["metrics"][name] for name in (across, up))
    if not point["on_front"]:
        axes.plot([x["ratio"]], [y["ratio"]], "o", ms=3, color="#bbbbbb")
        return
    bars = [None if each["low"] is None else _bar(each) for each in (x, y)]
    fill = _COMPLETED_COLOR if point["rounds"] else "white"
    where, color = ([x["ratio"]], [y["ratio"]]), _COMPLETED_COLOR
    axes.errorbar(*where, xerr=bars[0], yerr=bars[1], fmt="o", ms=6, color=color, markerfacecolor=fill, elinewidth=0.8)
    axes.annotate(f"#{point['number']}", (x["ratio"], y["ratio"]), (5, 5), textcoords="offset points", fontsize=8)


def _limits(points: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float]:
    """Return the ends of an axis: all ratios and intervals, but of very wide intervals only the part near a ratio."""
    cells = [point["metrics"][name] for point in points]
    ratios = [each["ratio"] for each in cells] + [1.0]
    ends = [each[key] for each in cells for key in ("low", "high") if each[key] is not None]
    low, high = max(min(ratios) / 1.5, min([*ratios, *ends])), min(1.5 * max(ratios), max([*ratios, *ends]))
    margin = 0.05 * (high - low) or 0.05
    return low - margin, high + margin


def _bar(each: Mapping[str, float]) -> list[list[float]]:
    """Return the distances from a ratio to the ends of its interval."""
    return [[each["ratio"] - each["low"]], [each["high"] - each["ratio"]]]
