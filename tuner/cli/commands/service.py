"""The commands of a service: `serve`, and those that ask one."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

import typer

from tuner.cli.from_server import open_client
from tuner.cli.help import flag, option
from tuner.cli.options import AsJson, Insecure, Server, takes_settings
from tuner.cli.output import pages
from tuner.errors import SettingError, UserError
from tuner.settings.declared import QUEUE, read_duration
from tuner.settings.serve import ServeSettings
from tuner.settings.submit import SubmitSettings

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the study.", show_default=False)]


@takes_settings(ServeSettings)
def serve(settings: ServeSettings) -> None:
    """Serve studies to several people.

    Starts an API, a queue and a scheduler in one process. The first start prints the token of an admin, once.
    `tuner service token add` makes further ones, `tuner service submit` submits a study.

    tuner serve

    tuner serve --storage postgresql://tuner@db/tuner --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem
    """
    from tuner.service.serve import serve  # a server's libraries

    serve(settings)


@takes_settings(SubmitSettings, only_given=True, engine={"kind": list[str] | None, "default": None, "shown": "auto"})
def submit(
    settings: dict[str, Any],
    watch: Annotated[bool, flag(QUEUE, "Then watch the study until it has ended.", "--watch")] = False,
    server: Server = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Submit a study to a service, which runs it when devices are free.

    The options of `tuner optimize` that say what is asked. The contents of files that they name are sent. Flags after
    `--` are passed to every server, if the service allows it.

    tuner service submit --preset chat --trials 40 --watch
    """
    if len(engines := settings.get("engine", ["auto"])) > 1:
        rule = "a study of a service has one engine"
        remedy = "leave it out, or rank engines by `tuner optimize` on one machine"
        raise SettingError("engine", engines[1], rule, remedy)
    settings |= {name: value[0] for name, value in settings.items() if name == "engine"}
    with open_client(server, insecure=insecure) as client:
        found = client.submit(**settings)
        pages.service.print_submitted(found, as_json=as_json)
        if watch:
            raise typer.Exit(pages.service.watch_study(client, found.id))


def watch(id: Id, server: Server = None, insecure: Insecure = False) -> None:
    """Watch a study of a service until it has ended.

    Prints a line for each stage and trial, the past ones first. Ctrl-C ends the command, not the study. Exits as `tuner
    optimize` does: 0 with a result, 1 if the study failed, 3 if nothing meets the SLOs, 4 if its time ended before it
    had a result, 130 if it was cancelled.
    """
    with open_client(server, insecure=insecure) as client:
        raise typer.Exit(pages.service.watch_study(client, id))


def mcp(server: Server = None, insecure: Insecure = False) -> None:
    """Let an agent use a service, by MCP.

    The command speaks over standard input and output. The agent asks what-if, submits studies, watches them and reads
    verdicts, with the rights and the quota of the token in TUNER_TOKEN. It sends no files of this machine. An agent's
    program starts the command:

    {"command": "tuner", "args": ["mcp", "--server", "https://tuner.example.org"]}
    """
    pages.service.run_agent(server, insecure=insecure)


def list_(
    owner: Annotated[str | None, option(None, "NAME", "Only this owner's.", shown="all that you may read")] = None,
    state: Annotated[
        list[str] | None, option(None, "STATE", "Only in this state, such as RUNNING.", shown="all")
    ] = None,
    top: Annotated[int, option(None, "INTEGER", "The newest ones that are shown.", least=1)] = 50,
    running: Annotated[bool, flag(None, "Only those that run or wait.", "--running")] = False,
    server: Server = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """List the studies of a service, the newest first."""
    states = pages.service.named_states(state or (), running=running)
    with open_client(server, insecure=insecure) as client:
        pages.service.print_studies([*islice(client.studies(owner=owner, states=states), top)], as_json=as_json)


def status(id: Id, server: Server = None, insecure: Insecure = False, as_json: AsJson = False) -> None:
    """Show where a study is: its state, its trials, and why it waits or ended."""
    with open_client(server, insecure=insecure) as client:
        pages.service.print_study(client.study(id), as_json=as_json)


def logs(
    id: Id,
    follow: Annotated[bool, flag(None, "Wait for further lines until the study has ended.", "--follow", "-f")] = False,
    server: Server = None,
    insecure: Insecure = False,
) -> None:
    """Print the log of a study of a service.

    It is what the study's driver wrote: settings, warnings, and why it failed. The logs of servers are with the trials.
    """
    with open_client(server, insecure=insecure) as client:
        pages.service.print_log(client, id, follow=follow)


def stop(id: Id, server: Server = None, insecure: Insecure = False) -> None:
    """Let a study's running trials finish, then conclude it."""
    with open_client(server, insecure=insecure) as client:
        pages.service.print_submitted(client.stop(id))


def cancel(id: Id, server: Server = None, insecure: Insecure = False) -> None:
    """End a study at once, without a conclusion. Its finished trials are kept."""
    with open_client(server, insecure=insecure) as client:
        pages.service.print_submitted(client.cancel(id))


def resume(id: Id, server: Server = None, insecure: Insecure = False) -> None:
    """Queue a stopped, cancelled or failed study again. It goes on behind its last trial."""
    with open_client(server, insecure=insecure) as client:
        pages.service.print_submitted(client.resume(id))


def delete(id: Id, server: Server = None, insecure: Insecure = False) -> None:
    """Delete an ended study with its trials and files.

    What MLflow has of it stays there.
    """
    with open_client(server, insecure=insecure) as client:
        client.delete(id)
    print(f"{id} is deleted")


def drift(
    id: Id,
    url: Annotated[list[str] | None, option(None, "URL", "URL of a server of vLLM.", shown="none")] = None,
    window: Annotated[str, option(None, "DURATION", "Length of a window.")] = "5m",
    end: Annotated[bool, flag(None, "Watch its servers no longer.", "--end")] = False,
    server: Server = None,
    insecure: Insecure = False,
) -> None:
    """Let a service watch whether servers' traffic is still that of a study.

    The command ends at once. The service compares as `tuner server drift` does, and says so on the study's page.

    tuner service drift mine --url http://10.0.0.7:8000 --url http://10.0.0.8:8000
    """
    if end == bool(url):
        raise UserError("give either --url URL or --end")
    pages.service.watch_deployed(server, id, url or (), read_duration("window", window), insecure=insecure)
