"""Help of commands in plain text: options and commands in panels, without rich, which would slow the start."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from tuner.settings.declared import OUTPUT

if TYPE_CHECKING:
    Rows = list[tuple[str, str]]

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


_NAMES_WIDTH = 28
"""Columns of the options' names from which their help begins on the next line."""

_OPTIONS = "Options"
_FEW = 12
"""Options up to which a command's help is one section."""

_ALL = "help_all"
_ALWAYS = ("help", _ALL)

FIRST_WEEK: Mapping[str, frozenset[str]] = {
    name: frozenset(words.split())
    for name, words in {
        "tuner": "optimize capacity trials compare export report serve submit space doctor version debug",
        "optimize": "preset trials timeout study model engine gpu workload max_concurrency slo objective baseline",
        "capacity": "preset workload rate slo model engine gpu vllm output as_json",
        "size": "preset workload rate slo model gpu price headroom confirm output as_json",
        "simulate": "preset gpu model workload rate max_concurrency input_len output_len as_json",
        "load": "url model preset workload study rate slo output as_json",
        "compare": "trials url workload margin blocks study storage as_json",
        "serve": "host port tls_certificate tls_key storage folder model_folder vllm ray_address",
        "submit": "id kind gpus priority watch preset trials model gpu workload slo objective server as_json",
    }.items()
}
"""The commands, and the parameters of a command, that `--help` shows; `--help-all` shows the others, too."""


def _shown(owner: Any, context: Any) -> Any:
    """Return a predicate of names: whether the help of a command, or of the group, shows them."""
    first = FIRST_WEEK.get(owner.name)
    if first is None or context.meta.get(_ALL):
        return lambda name: True
    return lambda name: name in first or name in _ALWAYS


class HelpCommand(typer.core.TyperCommand):
    """A command whose help shows its options by `rich_help_panel`, in the order of their declaration."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel; a command with few options, or a first week's, has one."""
        shown = _shown(self, ctx)
        every = self.get_params(ctx)
        parameters = [each for each in every if shown(each.name)]
        _write(formatter, _panels(parameters, ctx, divided=len(parameters) == len(every) > _FEW))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line; a required argument stands there without braces."""
        return [re.sub(r"[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]


class HelpGroup(typer.core.TyperGroup):
    """The group of all commands, whose help shows them by `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by panel, then the options."""
        shown = _shown(self, ctx)
        commands: dict[str, Rows] = {}
        for name, command in self.commands.items():
            if shown(name):
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                commands.setdefault(panel, []).append((name, command.get_short_help_str(formatter.width)))
        _write(formatter, commands)
        _write(formatter, _panels([each for each in self.get_params(ctx) if shown(each.name)], ctx, divided=False))


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta[_ALL] = True
        print(context.get_help())
        raise typer.Exit


def help_all(text: str) -> Any:
    """Return the declaration of `--help-all`, whose own help is `text`."""
    return typer.Option("--help-all", is_eager=True, callback=_show_all, help=text, rich_help_panel=OUTPUT)


def with_help_all(command: Command) -> Command:
    """Give a command with many options `--help-all`."""
    if command.__name__ not in FIRST_WEEK:
        return command

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        del given["help_all"]
        command(**given)

    annotation = Annotated[bool, help_all("Show every option.")]
    own = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
    set_parameters(wrapped, [*parameters_of(command).values(), own])
    return wrapped


def _panels(parameters: Sequence[Any], context: Any, *, divided: bool) -> dict[str, Rows]:
    """Return the names and help of parameters by panel; a parameter without one joins the last panel.

    Args:
        parameters: options and arguments in the order of their declaration.
        context: the command's, from which the defaults are read.
        divided: whether the options have panels; else all are in one.
    """
    panels: dict[str, Rows] = {}
    panel = _OPTIONS
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is None:
            continue
        names, text = record
        if parameter.param_type_name == "argument":
            panels.setdefault("Arguments", []).append((parameter.metavar or parameter.name, _in_words(text)))
            continue
        panel = (getattr(parameter, "rich_help_panel", None) if divided else None) or panel
        text += "  [repeatable]" if parameter.multiple else ""
        panels.setdefault(panel, []).append((names, _in_words(text)))
    return panels


def _in_words(text: str) -> str:
    """Return a help text whose ranges are words, such as `at least 1`, and whose remarks share one bracket.

    Typer writes defaults that are phrases in parentheses, which are left out.
    """
    text = text.replace("]  [", "; ").replace("; x>=0", "")
    text = re.sub(r"default: \(([^;]*)\)([;\]])", r"default: \1\2", text)
    text = re.sub(r"(\S+)<=x<=([^\s;\]]+)", r"\1 to \2", text)
    return re.sub(r"x>=([^\s;\]]+)", r"at least \1", text)


def _write(formatter: Any, panels: dict[str, Rows]) -> None:
    """Write a section for each panel; the help texts of all sections begin in one column."""
    width = min(max((len(names) for rows in panels.values() for names, _ in rows), default=0), _NAMES_WIDTH)
    for panel, rows in panels.items():
        with formatter.section(panel):
            formatter.write_dl([(names.ljust(width), text) for names, text in rows], col_max=width)


def option(
    panel: str | None,
    metavar: str,
    text: str,
    *names: str,
    shown: str | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """Return the declaration of an option that has a value.

    Args:
        panel: heading of its section in the help; None: the one of a command without panels.
        metavar: what the value is, such as `NAME`.
        text: help, one phrase.
        names: names of the option; without, that of the function's argument.
        shown: what the help shows as default where the argument's own is None.
        least: smallest value.
        most: largest value.
    """
    default: Any = True if shown is None else shown
    return typer.Option(
        *names, metavar=metavar, help=text, rich_help_panel=panel, show_default=default, min=least, max=most
    )


def flag(panel: str | None, text: str, *names: str) -> Any:
    """Return the declaration of an option without a value; see `option`."""
    return typer.Option(*names, help=text, rich_help_panel=panel)
