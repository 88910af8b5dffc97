"""`tuner submit`: a study for a service, with the options of `tuner optimize`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from tuner.cli.commands.run.optimize import optimize
from tuner.cli.commands.service.watch import watch_study
from tuner.cli.from_server import open_client
from tuner.cli.help import flag, option
from tuner.cli.options import AsJson, Insecure, Server, option_of
from tuner.cli.signatures import parameters_of, set_parameters
from tuner.client.settings import OptimizeSettings

QUEUE = "Queue"


def submit(
    context: typer.Context,
    id: Annotated[
        str | None,
        option(QUEUE, "NAME", "Id of the study, which is its name. A repetition changes nothing.", shown="a new one"),
    ] = None,
    kind: Annotated[
        str | None, option(QUEUE, "KIND", "Kind of the devices, such as h200.", shown="the server's only one")
    ] = None,
    gpus: Annotated[int, option(QUEUE, "INTEGER", "Most devices at once.", least=1)] = 1,
    priority: Annotated[
        int, option(QUEUE, "INTEGER", "Larger is sooner, among your own studies.", least=-100, most=100)
    ] = 0,
    share: Annotated[bool, flag(QUEUE, "Let every token read the study.", "--share")] = False,
    webhook: Annotated[
        str | None,
        option(QUEUE, "NAME", "Webhook of the server that hears of the study's end.", shown="the server's choice"),
    ] = None,
    watch: Annotated[bool, flag(QUEUE, "Watch the study until it has ended, as `tuner watch`.", "--watch")] = False,
    server: Server = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Submit a study to a service, which runs it when devices are free.

    The options of `tuner optimize` that say what is asked. The contents of files that they name are sent. Flags after
    `--` are passed to every server, if the service allows it.

    tuner submit --preset chat --trials 40 --watch
    """
    given = {name: options[name] for name in options if _is_given(context, name)}
    settings = {keyword: given[name] for keyword, name in SETTINGS.items() if name in given}
    _read(settings, context)
    with open_client(server, insecure=insecure) as client:
        found = client.submit(
            id=id,
            kind=kind,
            gpus=gpus,
            priority=priority,
            shared=share,
            webhook=webhook,
            **settings,
        )
        if as_json:
            from tuner.cli.output.parts.submitted import as_json as json_of

            print(json_of(found))
        else:
            print(f"{found.id} is {found.state.value}; see it with `tuner watch {found.id}`", flush=True)
        if watch:
            raise typer.Exit(watch_study(client, found.id))


def _is_given(context: typer.Context, name: str) -> bool:
    """Return whether an option is on the command line: the server knows the defaults."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _read(settings: dict[str, Any], context: typer.Context) -> None:
    """Read the settings whose options are not their values."""
    from tuner.cli.values import pairs, server_arguments

    for name in ("engine", "model", "space"):
        if name in settings:
            settings[name] = _single(name, settings[name])
    if "env" in settings:
        settings["env"] = pairs("env", settings["env"])
    arguments = server_arguments(context)
    if arguments:
        settings["server_arguments"] = arguments


def _single(name: str, texts: list[str]) -> str:
    """Return the one text of an option that `tuner optimize` takes several times; the last one wins, as there.

    Raises:
        SettingError: for several engines.
    """
    from tuner.errors import SettingError

    if name == "engine" and len(texts) > 1:
        rule = "a study of a service has one engine"
        raise SettingError(name, texts[1], rule, "leave it out, or rank engines by `tuner optimize` on one machine")
    return texts[-1]


def _option_names() -> dict[str, str]:
    """Return the parameter of `tuner optimize` of each setting that has one."""
    known = parameters_of(optimize)
    names = {keyword: option_of(keyword).removeprefix("--").replace("-", "_") for keyword in _KEYWORDS}
    found = {keyword: keyword if keyword in known else names[keyword] for keyword in _KEYWORDS}
    return {keyword: name for keyword, name in found.items() if name in known}


_KEYWORDS = [*OptimizeSettings.__annotations__]
SETTINGS = _option_names()
"""Parameters of this command, which are those of `tuner optimize`, by setting."""


def _parameters() -> list[inspect.Parameter]:
    """Return the command's parameters, the shared ones before those of the output."""
    own, theirs = [*parameters_of(submit).values()], parameters_of(optimize)
    place = next(index for index, each in enumerate(own) if each.name == "server")
    return [*own[:place], *(each for name, each in theirs.items() if name in SETTINGS.values()), *own[place:]]


set_parameters(submit, _parameters())
