"""`tuner submit`: a study for a service, with the options of `tuner optimize`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tuner.cli.commands.service.watch import watch_study
from tuner.cli.from_server import open_client
from tuner.cli.help import flag
from tuner.cli.options import AsJson, Insecure, Server, takes_settings
from tuner.errors import SettingError
from tuner.settings.declared import QUEUE
from tuner.settings.study import SubmitSettings


@takes_settings(SubmitSettings, only_given=True, engine={"kind": list[str] | None, "default": None, "shown": "auto"})
def submit(
    settings: dict[str, Any],
    watch: Annotated[bool, flag(QUEUE, "Watch the study until it has ended, as `tuner watch`.", "--watch")] = False,
    server: Server = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Submit a study to a service, which runs it when devices are free.

    The options of `tuner optimize` that say what is asked. The contents of files that they name are sent. Flags after
    `--` are passed to every server, if the service allows it.

    tuner submit --preset chat --trials 40 --watch
    """
    if len(engines := settings.get("engine", ["auto"])) > 1:
        rule = "a study of a service has one engine"
        remedy = "leave it out, or rank engines by `tuner optimize` on one machine"
        raise SettingError("engine", engines[1], rule, remedy)
    settings |= {name: value[0] for name, value in settings.items() if name == "engine"}
    with open_client(server, insecure=insecure) as client:
        found = client.submit(**settings)
        if as_json:
            from tuner.cli.output.parts import as_json as json_of

            print(json_of(found))
        else:
            print(f"{found.id} is {found.state.value}; see it with `tuner watch {found.id}`", flush=True)
        if watch:
            raise typer.Exit(watch_study(client, found.id))
