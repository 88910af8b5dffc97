"""Commands that share options: signatures that typer reads, made of those of other commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

Command = Callable[..., None]
_VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def parameters_of(command: Command) -> dict[str, inspect.Parameter]:
    """Return the parameters of a command by name, without `*` and `**`."""
    found = inspect.signature(command, eval_str=True).parameters
    return {name: each for name, each in found.items() if each.kind not in _VARIABLE}


def set_parameters(command: Command, parameters: Iterable[inspect.Parameter]) -> None:
    """Let a command, which takes keywords, show these parameters to typer."""
    shown = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    command.__signature__ = inspect.Signature(shown, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in shown} | {"return": None}
