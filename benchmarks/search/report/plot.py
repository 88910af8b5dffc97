"""Draws the incumbent's score against the number of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.search.report.figures import SummariesBySampler, estimate, score_after
from benchmarks.search.report.summary import SearchSummary
from benchmarks.search.samplers.catalogue import RESIDUAL_NAME

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT, LEGEND_HEIGHT = 5.0, 3.6, 0.4
"""Inches."""


def plot_scores(runs: Mapping[str, SummariesBySampler], best: Mapping[str, float], file: Path) -> None:
    """Draw a panel for each problem with a line and a 95 % interval for each sampler.

    Args:
        runs: the searches by problem and sampler.
        best: the best known score of each problem.
        file: the picture's file.
    """
    from matplotlib.figure import Figure  # takes a second to import, and --help does not need it

    columns = min(PANEL_COLUMNS, len(runs))
    rows = -(-len(runs) // columns)
    picture = Figure(figsize=(PANEL_WIDTH * columns, PANEL_HEIGHT * rows))
    panels = picture.subplots(rows, columns, squeeze=False)
    names = list(dict.fromkeys(sampler for by_sampler in runs.values() for sampler in by_sampler))
    colours = {name: "black" if name == RESIDUAL_NAME else f"C{place}" for place, name in enumerate(names)}
    for panel, (problem, by_sampler) in zip(panels.flat, runs.items(), strict=False):
        _draw_panel(panel, by_sampler, best[problem], colours)
        panel.set_title(problem, fontsize=10)
        panel.set_xlabel("trials")
        panel.set_ylabel("score / best known")
    for panel in list(panels.flat)[len(runs) :]:
        panel.set_axis_off()
    handles = {
        name: line for panel in panels.flat for line, name in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    picture.legend(handles.values(), handles.keys(), loc="lower center", ncols=6, fontsize=9, frameon=False)
    picture.tight_layout(rect=(0, LEGEND_HEIGHT / (PANEL_HEIGHT * rows), 1, 1))
    picture.savefig(file, dpi=110)


def _draw_panel(panel: Axes, by_sampler: SummariesBySampler, best: float, colours: Mapping[str, str]) -> None:
    longest = max(len(run.incumbent_scores) for runs in by_sampler.values() for run in runs)
    trials = range(1, longest + 1)
    for sampler, runs in by_sampler.items():
        steps = [step for k in trials if (step := estimate(_relative_scores(runs, k, best))) is not None]
        width = 2.2 if sampler == RESIDUAL_NAME else 1.2
        panel.plot(trials, [step.value for step in steps], color=colours[sampler], label=sampler, linewidth=width)
        lows, highs = [step.low for step in steps], [step.high for step in steps]
        panel.fill_between(trials, lows, highs, color=colours[sampler], alpha=0.12, linewidth=0)


def _relative_scores(runs: Sequence[SearchSummary], trials: int, best: float) -> list[float]:
    return [score_after(run.incumbent_scores, trials) / best for run in runs]
