"""The levers of a study that keeps its reference: what would help, by prediction, and the commands that try it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tuner.cli.command_line import command_of
from tuner.cli.output.parts.console import ShellCommand, as_table
from tuner.results.levers import LEVERS_TITLE, lever_notes, levers_grid


def lever_parts(
    levers: Sequence[Mapping[str, Any]], study: str, reference: int, *, simulated: bool
) -> list[RenderableType]:
    """Return what is shown of levers; nothing without any.

    Args:
        levers: as plain JSON, see `Lever`; the best first.
        study: name of the study.
        reference: number of its reference.
        simulated: whether the study is, and then so are those that the commands run.
    """
    if not levers:
        return []
    title = Text(LEVERS_TITLE, style="bold")
    notes = map(Text, lever_notes(levers))
    return [Text(""), title, as_table(levers_grid(levers)), *notes, *_commands(levers, study, reference, simulated)]


def _commands(levers: Sequence[Mapping[str, Any]], study: str, reference: int, simulated: bool) -> list[RenderableType]:
    """Return the commands that try the levers, and the one that compares the first with the reference."""
    verb = "simulate" if simulated else "measure"
    parts: list[RenderableType] = []
    for each in levers:
        parts.append(Text(f"{verb} {each['name']}" + (f", with {each['needs']}" if each["needs"] else "") + ":"))
        parts.append(ShellCommand.of(command_of(each["settings"]), "  "))
    if simulated:
        rest = "the same on a machine with card and vLLM, without --gpu, --vllm-version and --engine"
        parts.append(Text(f"to measure: {rest}"))
    words = ("tuner", "compare", f"{study}#{reference}", levers[0]["settings"]["study"])
    return [*parts, Text("then compare, for example:"), ShellCommand(words, "  ")]


def with_commands(conclusion: Mapping[str, Any]) -> dict[str, Any]:
    """Return a conclusion, as plain JSON, whose levers have their command."""
    levers = [{**each, "command": command_of(each["settings"])} for each in conclusion.get("levers", ())]
    return {**conclusion, **({"levers": levers} if "levers" in conclusion else {})}
