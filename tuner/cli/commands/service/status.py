"""`tuner status`: the studies of a service."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from tuner.cli.from_server import open_client
from tuner.cli.help import flag, option
from tuner.cli.options import AsJson, Insecure, Server


def status(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Id of a study, to see it in full.")] = None,
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
    """List the studies of a service, the newest first, or show one in full.

    Shows where each is: its state, its trials, and why it waits or ended.
    """
    from storage.service.records import ENDED, SubmissionState
    from tuner.cli.output import parts
    from tuner.errors import SettingError, UserError

    for each in state or ():
        if each.upper() not in SubmissionState.__members__:
            raise SettingError("state", each, f"states: {', '.join(SubmissionState.__members__)}")
    if id is not None and (owner or state or running):
        raise UserError("a study and filters exclude each other; give one")
    wanted = [each.upper() for each in state or ()]
    if running:
        wanted += [each.value for each in SubmissionState if each not in ENDED]
    with open_client(server, insecure=insecure) as client:
        if id is not None:
            study = client.study(id)
            print(parts.as_json(study)) if as_json else parts.print_study(study)
            return
        found = list(islice(client.studies(owner=owner, states=wanted), top))
    if as_json:
        print(parts.as_json(found))
    elif found:
        parts.print_table(found)
    else:
        print("no study; `tuner submit` submits one")
