"""The levers of a study that keeps its reference: what would help, by prediction, and the commands that measure it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tuner.cli.command_line import command_of
from tuner.cli.output.parts.console import new_table

CHANGES_ANSWERS = "* changes the answers"


def lever_parts(levers: Sequence[Mapping[str, Any]], study: str, reference: int) -> list[RenderableType]:
    """Return what is shown of levers; nothing without any.

    Args:
        levers: as plain JSON, see `Lever`; the best first.
        study: name of the study.
        reference: number of its reference.
    """
    if not levers:
        return []
    table = new_table()
    names = list(levers[0]["metrics"])
    for heading in ("lever", "score", *names):
        table.add_column(heading, justify="left" if heading == "lever" else "right", no_wrap=True)
    for each in levers:
        mark = " *" if each["changes_answers"] else ""
        table.add_row(each["name"] + mark, f"×{each['score']:.2f}", *(_ratio(each, name) for name in names))
    title = Text("what would help, which this study could not try: predicted, not measured", style="bold")
    notes = [_spread(levers[0]), *([CHANGES_ANSWERS] if any(each["changes_answers"] for each in levers) else [])]
    return [Text(""), title, table, *map(Text, filter(None, notes)), *_commands(levers, study, reference)]


def _ratio(lever: Mapping[str, Any], name: str) -> str:
    value = lever["metrics"].get(name)
    return "" if value is None else f"×{value:.2f}"


def _spread(lever: Mapping[str, Any]) -> str:
    """Return the known error of predictions."""
    parts = [f"{name} {share:.0%}" for name, share in lever["within"].items()]
    return f"nine of ten predictions of recorded runs were within: {', '.join(parts)}" if parts else ""


def _commands(levers: Sequence[Mapping[str, Any]], study: str, reference: int) -> list[RenderableType]:
    """Return the commands that measure the levers, and the one that compares the first with the reference."""
    lines = []
    for each in levers:
        lines.append(f"measure {each['name']}" + (f", with {each['needs']}" if each["needs"] else "") + ":")
        lines.append(f"  {command_of(each['settings'])}")
    lines.append("then compare, for example:")
    lines.append("  " + shlex.join(["tuner", "compare", f"{study}#{reference}", levers[0]["settings"]["study"]]))
    return [Text(line, no_wrap=True, overflow="ignore") for line in lines]


def with_commands(conclusion: Mapping[str, Any]) -> dict[str, Any]:
    """Return a conclusion, as plain JSON, whose levers have their command."""
    levers = [{**each, "command": command_of(each["settings"])} for each in conclusion.get("levers", ())]
    return {**conclusion, **({"levers": levers} if "levers" in conclusion else {})}
