"""Pictures of a study's search: the score by trial, the importance of parameters, and the effects of flags.

They show what the figures of the report show (`dashboards.plots.interactive`), as PNG files for MLflow's artifacts.
Each function writes a file and returns the figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboards.plots.figures import figure_file
from dashboards.plots.interactive.search import searched
from storage.records import TrialRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, RED, GREEN, GREY = "#4878a8", "#edae49", "#d1495b", "#3f8f5f", "#8c8c8c"
MOST_BARS = 12


def draw_progress(trials: Sequence[TrialRecord], target: Path, title: str) -> Figure:
    """Draw the score of each trial, the best so far of those within the SLOs, and a cross for each failed trial.

    Args:
        trials: of the study; rounds are left out.
        target: the file to write.
        title: title of the figure.
    """
    from matplotlib.ticker import MaxNLocator

    every = searched(trials)
    scored = [(trial, trial.verdict.score) for trial in every if trial.verdict is not None and trial.verdict.score]
    lowest = min([1.0, *(score for _, score in scored)])
    failed = [trial.number for trial in every if trial.state == "failed"]
    with figure_file(target, title, 9.5, 4.8) as figure:
        axes = figure.subplots()
        for state, label, color, fill in (
            ("ok", "within the SLOs", BLUE, BLUE),
            ("infeasible", "an SLO is missed", ORANGE, "none"),
        ):
            points = [(trial.number, score) for trial, score in scored if trial.state == state]
            if points:
                axes.plot(*zip(*points, strict=True), "o", label=label, color=color, markerfacecolor=fill)
        if failed:
            axes.plot(failed, [lowest] * len(failed), "x", color=RED, label="failed")
        _add_best(axes, scored)
        axes.axhline(1.0, color=GREY, lw=1.0, linestyle=":")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("trial")
        axes.set_ylabel("score (the reference scores 1)")
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    return figure


def _add_best(axes: Axes, scored: Sequence[tuple[TrialRecord, float]]) -> None:
    steps: list[tuple[int, float]] = []
    for trial, score in scored:
        if trial.state == "ok":
            steps.append((trial.number, max(score, steps[-1][1] if steps else score)))
    if steps:
        steps.append((scored[-1][0].number, steps[-1][1]))
        axes.step(*zip(*steps, strict=True), where="post", color=GREEN, lw=1.5, label="best so far")


def draw_importance(shares: Mapping[str, Sequence[float]], target: Path, title: str) -> Figure:
    """Draw the importance of parameters as bars, the largest on top.

    Args:
        shares: by parameter the share of the score's variance, in [0, 1], and the ends of its interval.
        target: the file to write.
        title: title of the figure.
    """
    ranked = sorted(shares.items(), key=lambda item: item[1][0])[-MOST_BARS:]
    with figure_file(target, title, 9.5, 1.6 + 0.32 * len(ranked)) as figure:
        axes = figure.subplots()
        values = [100 * share for _, (share, _, _) in ranked]
        ends = [[100 * (share - low) for _, (share, low, _) in ranked], [100 * (h - s) for _, (s, _, h) in ranked]]
        axes.barh([name for name, _ in ranked], values, color=BLUE)
        axes.errorbar(values, range(len(ranked)), xerr=ends, fmt="none", ecolor=GREY, elinewidth=1.2)
        axes.set_xlabel("share of the score's variance, %")
        axes.set_xlim(left=0.0)
    return figure


def draw_flags(effects: Sequence[Mapping[str, Any]], target: Path, title: str) -> Figure:
    """Draw the effects of the winner's flags on the score, with intervals, the largest on top.

    Args:
        effects: `name`, `value`, `ratio`, `low` and `high` of each flag, as a conclusion has them.
        target: the file to write.
        title: title of the figure.
    """
    shown = list(reversed(effects[:MOST_BARS]))
    with figure_file(target, title, 9.5, 1.6 + 0.36 * len(shown)) as figure:
        axes = figure.subplots()
        for place, each in enumerate(shown):
            low, high = (each["ratio"] if each[end] is None else each[end] for end in ("low", "high"))
            axes.plot([low, high], [place, place], color=GREY, lw=1.4)
            axes.plot([each["ratio"]], [place], "o", color=BLUE)
        axes.set_yticks(range(len(shown)), [f"{each['name']}={each['value']}" for each in shown])
        axes.axvline(1.0, color=GREY, lw=1.0, linestyle=":")
        axes.set_xlabel("score with the flag over the score with its default, 95 % interval")
        axes.grid(alpha=0.3, axis="x")
    return figure
