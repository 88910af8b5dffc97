"""A study's conclusion on the terminal: the winner beside the defaults, the finalists, and the effect of each flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tuner.cli.output.parts.console import as_table
from tuner.results.classes import BY_CLASS, classes_grid, classes_note
from tuner.results.conclusion import (
    WOULD_HELP,
    comparison_grid,
    comparison_title,
    finalists_grid,
    flags_grid,
    flags_note,
    kept_line,
    noise_warning,
    smaller_line,
    worse_metrics,
)
from tuner.results.cost_lines import cost_lines
from tuner.results.engines import ENGINES_TITLE, engines_grid
from tuner.results.findings import Findings
from tuner.results.nearest import nearest_grid, rate_line


def conclusion_parts(findings: Findings) -> list[RenderableType]:
    """Return what is shown of a conclusion beside its reason: tables, with an empty line before each."""
    lines = [kept_line(findings), noise_warning(findings)]
    parts: list[RenderableType] = [
        Text(line, style="yellow" if index else "") for index, line in enumerate(lines) if line
    ]
    parts += nearest_parts(findings.conclusion.get("nearest"))
    if (smaller := smaller_line(findings)) is not None:
        parts.append(Text(smaller))
    if (comparison := comparison_grid(findings)) is not None:
        parts += [Text(""), Text(comparison_title(findings), style="bold"), as_table(comparison)]
        if worse := worse_metrics(findings):
            parts.append(
                Text(
                    f"much worse than with {findings.baseline_name}, but no objective: {', '.join(worse)}",
                    style="yellow",
                )
            )
    if (classes := classes_grid(findings)) is not None:
        parts += [Text(""), Text(comparison_title(findings, BY_CLASS), style="bold"), as_table(classes)]
        parts += [Text(note)] if (note := classes_note(findings)) else []
    parts += [Text(line) for line in cost_lines(findings)]
    if (engines := engines_grid(findings)) is not None:
        parts += [Text(""), Text(ENGINES_TITLE, style="bold"), as_table(engines)]
    if (finalists := finalists_grid(findings)) is not None:
        title = f"finalists, as ratios to {findings.baseline_name}"
        parts += [Text(""), Text(title, style="bold"), as_table(finalists)]
    contenders = findings.conclusion.get("contenders", ())
    parts += [
        Text(f"#{each['number']} is excluded: {each['disqualified']}") for each in contenders if each["disqualified"]
    ]
    if (flags := flags_grid(findings)) is not None:
        parts += [
            Text(""),
            Text(f"flags of #{findings.winner}", style="bold"),
            Text(flags_note(findings)),
            as_table(flags),
        ]
    if helpful := findings.conclusion.get("would_help"):
        parts += [Text(""), Text(WOULD_HELP, style="bold"), *map(Text, helpful)]
    return parts


def nearest_parts(nearest: Mapping[str, Any] | None) -> list[RenderableType]:
    """Return what is shown of the nearest configuration; nothing if the SLOs are met.

    Args:
        nearest: as plain JSON, see `Nearest`.
    """
    if not nearest:
        return []
    title = Text(f"the SLOs with #{nearest['number']}, the nearest to meeting them", style="bold")
    rate = rate_line(nearest)
    return [*([] if rate is None else [Text(rate)]), Text(""), title, as_table(nearest_grid(nearest))]
