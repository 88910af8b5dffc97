"""Options: those that settings declare, those that several commands share, and the reading of their values."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import typer

from tuner.cli.help import Command, flag, option, parameters_of, set_parameters
from tuner.errors import SettingError, UserError, spelled
from tuner.settings.declared import OUTPUT, PANELS, RUN, Setting, default_of, settings_of
from tuner.settings.study import StudySettings
from tuner.settings.submit import SubmitSettings

_OPTIONS = {
    name: f"--{setting.option}"
    for model in (StudySettings, SubmitSettings)
    for name, (_, setting) in settings_of(model).items()
    if setting.option is not None
} | {"name": "NAME", "output": "-o", "server_arguments": "server argument"}


def option_of(field: str) -> str:
    """Return the option of a setting, as error messages name it; server arguments have none and follow `--`."""
    return _OPTIONS.get(field, "--" + field.replace("_", "-"))


def of(name: str, **changes: Any) -> Any:
    """Return the declaration of the option of a setting, with `changes` of what the `Setting` declares."""
    kind, setting = settings_of(StudySettings)[name]
    return _declared(name, kind, replace(setting, **changes), default=False)


def _declared(name: str, kind: Any, setting: Setting, default: Any) -> Any:
    """Return the declaration of an option; `default` decides whether a switch can be turned off."""
    long, help = option_of(name), spelled(setting.help, option_of)
    names = ("--output", "-o") if name == "output" else (long,)
    if kind is bool:
        return flag(setting.panel, help, f"{long}/--no-{long[2:]}" if default else long)
    bounds = {"least": setting.least, "most": setting.most}
    return option(setting.panel, setting.value, help, *names, shown=setting.shown, **bounds)


def takes_settings(
    model: type, /, *names: str, only_given: bool = False, **changes: Mapping[str, Any]
) -> Callable[[Callable[..., None]], Command]:
    """Give a command the options of settings; it is called with `settings`, the model that they make.

    Args:
        model: of the settings.
        names: of the settings that have an option; none: all.
        only_given: whether the command gets a dictionary of the settings on its command line instead.
        changes: by name, what is another in this command: a `default`, a `kind` of the option's value, or what a
            `Setting` declares.
    """
    declared, defaults = settings_of(model), {each.name: default_of(each) for each in fields(model)}
    chosen = [name for name in names or declared if name != "server_arguments"]
    more = {each.more_of: (name, each) for name, (_, each) in declared.items() if name in chosen and each.more_of}

    def parameter(name: str) -> inspect.Parameter:
        (kind, setting), own = declared[name], dict(changes.get(name, {}))
        default, kind = own.pop("default", defaults[name]), own.pop("kind", _kind(kind, several=name in more))
        if name in more:
            setting = replace(setting, help=f"{setting.help} {more[name][1].help}", shown=setting.shown or default)
        found = _declared(name, kind, replace(setting, **own), default)
        default = None if name in more or isinstance(default, tuple | dict) else default
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, found]
        )

    shown = [name for name in chosen if declared[name][1].more_of is None]
    shown.sort(key=lambda name: PANELS.index(changes.get(name, {}).get("panel", declared[name][1].panel)))
    shared = [parameter(name) for name in shown]

    def decorate(command: Callable[..., None]) -> Command:
        @functools.wraps(command)
        def wrapped(*, context: typer.Context, **given: Any) -> None:
            own = {name: value for name, value in given.items() if name not in shown}
            found = {name: given[name] for name in shown if not only_given or _is_given(context, name)}
            settings = _read(found, declared, {field: name for field, (name, _) in more.items()}, context)
            command(settings=settings if only_given else model(**settings), **own)

        given = [each for name, each in parameters_of(command).items() if name != "settings"]
        set_parameters(wrapped, [*shared, *given], context=(typer.Context, inspect.Parameter.empty))
        return wrapped

    return decorate


def _kind(kind: Any, *, several: bool) -> Any:
    if several or get_origin(kind) in (Sequence, Mapping):
        return list[str] | None
    members = get_args(kind)
    if str in members:
        return str | None if NoneType in members else str
    return kind


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _read(
    given: Mapping[str, Any],
    declared: Mapping[str, tuple[Any, Setting]],
    more: Mapping[str, str],
    context: typer.Context,
) -> dict[str, Any]:
    """Return the settings of options: lists as tuples, `NAME=VALUE` as mappings, and flags after `--`.

    With fewer than two engines, an option that has a value for each engine counts once, and the last one wins.
    """

    found: dict[str, Any] = {}
    several = len(given.get("engine") or ()) > 1 and "engine" in more
    for name, value in given.items():
        kind, setting = declared[name]
        if name in more:
            texts = tuple(value or ()) if several else tuple(value or ())[-1:]
            found |= {name: texts[0], more[name]: texts[1:]} if texts else {}
        elif get_origin(kind) is Mapping:
            found[name] = (numbers if float in get_args(kind) else pairs)(name, value, setting.value)
        elif get_origin(kind) is Sequence:
            found[name] = (value,) if isinstance(value, str) else tuple(value or ())
        else:
            found[name] = value
    arguments = server_arguments(context) if "server_arguments" in declared else ()
    return {**found, **({"server_arguments": arguments} if arguments else {})}


Rate = Annotated[float | None, of("rate")]
RayAddress = Annotated[str | None, of("ray_address")]
ServerCommand = Annotated[str | None, of("server_command")]
Slos = Annotated[list[str] | None, of("slo")]
Storage = Annotated[str | None, of("storage")]
Vllm = Annotated[str | None, of("vllm")]

Server = Annotated[
    str | None,
    option(OUTPUT, "URL", "The `tuner serve` to ask; the token is in $TUNER_TOKEN.", "--server", shown="$TUNER_SERVER"),
]
Insecure = Annotated[
    bool,
    flag(OUTPUT, "Send the token without TLS to a server beyond this machine.", "--insecure"),
]
StudyName = Annotated[
    str | None,
    option(None, "NAME", "Name of the study.", "--study", shown="the latest"),
]
Study = Annotated[str | None, typer.Argument(metavar="[STUDY]", help="Name of the study.", show_default="the latest")]
Round = Annotated[
    int,
    option(None, "INTEGER", "Measurement of this round; 0 is the trial of the search.", "--round", least=0),
]
Margin = Annotated[float, option(RUN, "PERCENT", "The smallest change that matters, in percent.", least=0, most=50)]
AsJson = Annotated[bool, flag(OUTPUT, "Print JSON.", "--json")]
AsCsv = Annotated[bool, flag(OUTPUT, "Print CSV.", "--csv")]


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def refuse_both(one: str, other: str, *, given: bool) -> None:
    """Refuse two options that are given at once.

    Raises:
        UserError: if they are.
    """
    if given:
        raise UserError(f"{one} and {other} exclude each other; give one")


def pairs(field: str, texts: Sequence[str] | None, form: str = "NAME=VALUE") -> dict[str, str]:
    """Read the `NAME=VALUE` texts of a setting, whose form messages name as `form`.

    Raises:
        SettingError: for another form, or a name that is given twice.
    """
    result: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise SettingError(field, text, f"the form is {form}")
        if name in result:
            raise SettingError(field, text, f"{name} is given twice")
        result[name] = value
    return result


def numbers(field: str, texts: Sequence[str] | None, form: str) -> dict[str, float]:
    """Read texts as `pairs` does, whose values are numbers.

    Raises:
        SettingError: for another form.
    """
    found = {}
    for name, value in pairs(field, texts, form).items():
        try:
            found[name] = float(value)
        except ValueError:
            raise SettingError(field, f"{name}={value}", f"{value!r} is not a number; the form is {form}") from None
    return found


def server_arguments(context: typer.Context) -> tuple[str, ...]:
    """Return the server's flags: the words after `--`. In a study of several engines, `ENGINE=` may be the first.

    Raises:
        UserError: for a word before `--` that is no option.
    """
    from tuner.engines.kind import Feature  # they load numpy and pydantic, which no help needs
    from tuner.engines.kinds import with_feature

    engine = context.args[0].partition("=")[0] if context.args and "=" in context.args[0] else None
    if context.args and not context.args[0].startswith("-") and engine not in with_feature(Feature.BESIDE_OTHERS):
        rule = f"{context.args[0]!r} is not an option of `{context.command_path}`"
        raise UserError(f"{rule}; flags of `vllm serve` follow `--`, such as `-- --max-num-seqs 64`")
    return tuple(context.args)
