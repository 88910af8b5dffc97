"""Help of commands in plain text: options and commands in panels, without rich, which would slow the start."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
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


def set_parameters(command: Command, parameters: Iterable[inspect.Parameter], **added: tuple[Any, Any]) -> None:
    """Let a command, which takes keywords, show these parameters to typer, and `added`: their types and defaults."""
    kind = inspect.Parameter.KEYWORD_ONLY
    shown = [each.replace(kind=kind) for each in parameters]
    for name, (annotation, default) in added.items():
        shown.append(inspect.Parameter(name, kind, annotation=annotation, default=default))
    command.__signature__ = inspect.Signature(shown, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in shown} | {"return": None}


_NAMES_WIDTH = 28
"""Columns of the options' names from which their help begins on the next line."""

_OPTIONS = "Options"
_FEW = 12
"""Options up to which a command's help is one section."""

_WHOLE = 1000
"""Characters of a command's short help, so that no sentence is cut."""

_ALIKE = 0.6
"""Likeness of two names, of which one may be a slip of the other, as difflib counts it."""

_ALL = "help_all"
_ALWAYS = ("help", _ALL)

FIRST_WEEK: Mapping[str, frozenset[str]] = {
    path: frozenset(words.split())
    for path, words in {
        "": "version debug",
        "optimize": "preset trials timeout study model engine gpu workload max_concurrency slo objective baseline",
        "capacity": "preset workload rate slo model engine gpu vllm output as_json",
        "size": "preset workload rate slo model gpu price headroom confirm output as_json",
        "simulate": "preset gpu model workload rate max_concurrency input_len output_len as_json",
        "serve": "host port tls_certificate tls_key storage folder model_folder vllm ray_address",
        "quality": "study trial model reference quality_task slo storage as_json",
        "server load": "url model preset workload study rate slo output as_json",
        "service submit": "id kind gpus priority watch preset trials model gpu workload slo objective server as_json",
    }.items()
}
"""The parameters of a command, by its words after `tuner`, that `--help` shows; `--help-all` shows all."""


def _shown(context: Any) -> Callable[[str], bool]:
    """Return a predicate of names: whether the help of the context's command shows these parameters."""
    first = FIRST_WEEK.get(context.command_path.partition(" ")[2])
    if first is None or context.meta.get(_ALL):
        return lambda name: True
    return lambda name: name in first or name in _ALWAYS


class HelpCommand(typer.core.TyperCommand):
    """A command whose help shows its options by `rich_help_panel`, in the order of their declaration."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel; a command with few options, or a first week's, has one."""
        shown = _shown(ctx)
        every = self.get_params(ctx)
        parameters = [each for each in every if shown(each.name)]
        _write(formatter, _panels(parameters, ctx, divided=len(parameters) == len(every) > _FEW))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line; a required argument stands there without braces."""
        return [re.sub(r"[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]


class HelpGroup(typer.core.TyperGroup):
    """A group of commands, whose help shows them by `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by panel, then the options. A group is a row with its commands; in --help-all, a panel."""
        shown = _shown(ctx)
        commands: dict[str, Rows] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            text = command.get_short_help_str(_WHOLE)
            inner = getattr(command, "commands", {})
            if inner and ctx.meta.get(_ALL):
                every = [(path, each) for path, each in commands_in(command, name) if not hasattr(each, "commands")]
                commands[f"{ctx.command_path} {name}"] = [(p, each.get_short_help_str(_WHOLE)) for p, each in every]
                continue
            text = f"{text.rstrip('.')}: {', '.join(inner)}." if inner else text
            commands.setdefault(panel, []).append((name, text))
        _write(formatter, commands)
        _write(formatter, _panels([each for each in self.get_params(ctx) if shown(each.name)], ctx, divided=False))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of the first word, its name and the words behind it.

        Raises:
            UsageError: for a command that does not exist, with the commands of that name in other groups, else of names
                that are near.
        """
        if args[0] not in self.commands and not ctx.resilient_parsing and not args[0].startswith("-"):
            group = ctx.command_path.partition(" ")[2]
            near = _near(args[0], group, [path for path, _ in commands_in(ctx.find_root().command)])
            question = f"; did you mean {' or '.join(f'`tuner {path}`' for path in near)}?" if near else ""
            ctx.fail(f"there is no command {f'{group} {args[0]}'.strip()!r}{question}")
        return super().resolve_command(ctx, args)


def commands_in(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands and groups below a group by their words after `tuner`, those of each group behind it."""
    for name, command in group.commands.items():
        inner = f"{path} {name}".strip()
        yield inner, command
        if hasattr(command, "commands"):
            yield from commands_in(command, inner)


def _near(name: str, group: str, paths: Sequence[str]) -> list[str]:
    """Return the commands that a wrong name means: those of this name, else near ones of the group, else of others.

    `group` is the path of the wrong name's group, empty for that of all commands; `paths` are those of every command.
    """

    def meant(among: Sequence[str], likeness: float) -> list[str]:
        words = get_close_matches(name, [path.split()[-1] for path in among], 2, likeness)
        return [path for path in among if path.split()[-1] in words]

    own = [path for path in paths if path.rpartition(" ")[0] == group]
    return meant(paths, 1) or meant(own, _ALIKE) or meant(paths, _ALIKE)


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta[_ALL] = True
        print(context.get_help())
        raise typer.Exit


def help_all(text: str) -> Any:
    """Return the declaration of `--help-all`, whose own help is `text`."""
    return typer.Option("--help-all", is_eager=True, callback=_show_all, help=text, rich_help_panel=OUTPUT)


def with_help_all(command: Command, path: str) -> Command:
    """Give the command of a path, if it has many options, `--help-all`."""
    if path not in FIRST_WEEK:
        return command

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        del given["help_all"]
        command(**given)

    annotation = Annotated[bool, help_all("Show every option.")]
    set_parameters(wrapped, parameters_of(command).values(), help_all=(annotation, False))
    return wrapped


def _panels(parameters: Sequence[Any], context: Any, *, divided: bool) -> dict[str, Rows]:
    """Return the names and help of parameters by panel; a parameter without one joins the last panel.

    Without `divided`, all options are in one panel.
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
    """Return the declaration of an option that has a value: a `metavar` such as `NAME`, from `least` to `most`.

    `panel` is the heading of its section in the help; None: the one of a command without panels. Without `names`, it
    has that of the function's argument. `shown` is what the help shows as default where the argument's own is None.
    """
    default: Any = True if shown is None else shown
    return typer.Option(
        *names, metavar=metavar, help=text, rich_help_panel=panel, show_default=default, min=least, max=most
    )


def flag(panel: str | None, text: str, *names: str) -> Any:
    """Return the declaration of an option without a value; see `option`."""
    return typer.Option(*names, help=text, rich_help_panel=panel)
