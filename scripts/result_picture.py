"""Draw the result of a study: the scores of its trials, and the finalists with their confidence intervals.

    uv run python scripts/result_picture.py TRIALS.json BEST.json docs/images/result.png

The two files are the output of `tuner trials --json` and `tuner best --json`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

FEASIBLE, INFEASIBLE, WINNER, DEFAULTS = "#4c78a8", "#bbbbbb", "#d8561c", "#222222"


def draw_search(axes: Axes, trials: list[dict[str, Any]]) -> None:
    """Draw the score of each trial of the search, relative to the defaults."""
    searched = [trial for trial in trials if not trial["round"] and trial["score"] is not None]
    for feasible, colour, label in ((True, FEASIBLE, "feasible"), (False, INFEASIBLE, "misses an SLO")):
        chosen = [trial for trial in searched if trial["feasible"] is feasible]
        axes.scatter([t["number"] for t in chosen], [t["score"] for t in chosen], s=18, color=colour, label=label)
    axes.axhline(1.0, color=DEFAULTS, linewidth=1)
    axes.set(title="Search: one benchmark per trial", xlabel="trial", ylabel="score relative to the defaults")
    axes.legend(loc="lower right", frameon=False)


def draw_finalists(axes: Axes, best: dict[str, Any]) -> None:
    """Draw each finalist's score and confidence interval over the rounds."""
    finalists = sorted(best["contenders"], key=lambda each: each["score"]["ratio"])
    names = []
    for place, each in enumerate(finalists):
        score, won = each["score"], each["number"] == best["winner"]
        below, above = score["ratio"] - score["low"], score["high"] - score["ratio"]
        colour = WINNER if won else FEASIBLE
        axes.errorbar(score["ratio"], place, xerr=[[below], [above]], fmt="o", color=colour, capsize=4)
        names.append(f"#{each['number']}" + (" winner" if won else ""))
    axes.axvline(1.0, color=DEFAULTS, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set(title=f"Confirmation: {best['rounds']} rounds in alternation", xlabel="score, 95 % confidence interval")


def main() -> None:
    """Read the two files and write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("trials", "best", "picture"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    figure = Figure(figsize=(10, 3.4), dpi=110, layout="constrained")
    search, finalists = figure.subplots(1, 2)
    draw_search(search, json.loads(given.trials.read_text(encoding="utf-8")))
    draw_finalists(finalists, json.loads(given.best.read_text(encoding="utf-8")))
    figure.savefig(given.picture)


if __name__ == "__main__":
    main()
