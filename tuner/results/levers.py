"""The levers of a study that keeps its reference: what would help, by prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.results.grid import Grid, grid

LEVERS_TITLE = "what would help, which this study could not try: predicted, not measured"
NO_BAND = "too few measured rows of this kind: these predictions have no error band"
CHANGES_ANSWERS = "* changes the answers"


def levers_grid(levers: Sequence[Mapping[str, Any]]) -> Grid:
    """Return each lever with the predicted ratio of its score and metrics.

    Args:
        levers: at least one, as plain JSON, see `Lever`; the best first.
    """
    names = list(levers[0]["metrics"])
    table = grid("lever", "score", *names, left=("lever",))
    for each in levers:
        mark = " *" if each["changes_answers"] else ""
        table.add(each["name"] + mark, f"×{each['score']:.2f}", *(_ratio(each, name) for name in names))
    return table


def lever_notes(levers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines below the table: the known error of predictions, and what a star means."""
    return [_spread(levers[0]), *([CHANGES_ANSWERS] if any(each["changes_answers"] for each in levers) else [])]


def _ratio(lever: Mapping[str, Any], name: str) -> str:
    value = lever["metrics"].get(name)
    return "" if value is None else f"×{value:.2f}"


def _spread(lever: Mapping[str, Any]) -> str:
    """Return the known error of predictions, or that there is none."""
    parts = [f"{name} {share:.0%}" for name, share in lever["within"].items()]
    return f"nine of ten predictions of recorded runs were within: {', '.join(parts)}" if parts else NO_BAND
