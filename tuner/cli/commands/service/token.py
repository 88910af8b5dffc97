"""`tuner token`: the tokens of a service."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.from_server import open_client, refuse_both
from tuner.cli.help import option
from tuner.cli.options import Insecure, Server, Storage
from tuner.errors import UserError

if TYPE_CHECKING:
    from tuner.client.client import Client
    from tuner.client.replies import ServiceToken
    from tuner.service.tokens import StoredTokens

ACTIONS = ("add", "list", "revoke")


def token(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="add, list or revoke.", show_default=False)],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of the token that is added or revoked.")
    ] = None,
    owner: Annotated[
        str | None, option(None, "NAME", "Whose studies a new token submits and reads.", shown="the token's name")
    ] = None,
    role: Annotated[str, option(None, "ROLE", "What a new token may do: viewer, user or admin.")] = "user",
    days: Annotated[
        int | None, option(None, "INTEGER", "Days until a new token expires.", shown="never", least=1, most=3650)
    ] = None,
    storage: Storage = None,
    server: Server = None,
    insecure: Insecure = False,
) -> None:
    """Add, list or revoke tokens of a service.

    Works on the service's database, or asks a server with an admin's token. A new token is printed once, alone on
    standard output; the database has only its hash.

    tuner token add ada --days 90
    """
    refuse_both(server, storage)
    if action not in ACTIONS:
        raise UserError(f"{action!r} is not an action of `tuner token`; actions: {', '.join(ACTIONS)}")
    if (name is None) != (action == "list"):
        raise UserError(f"`tuner token {action}` " + ("needs the token's name" if name is None else "takes no name"))
    if server is None and (storage is not None or not os.environ.get("TUNER_SERVER")):
        from tuner.service.tokens import StoredTokens
        from tuner.use_cases.places import storage_url

        with closing(StoredTokens(storage_url(storage, create=action == "add"))) as tokens:
            _act(tokens, action, name or "", owner, role, days)
        return
    with open_client(server, insecure=insecure) as client:
        _act(client, action, name or "", owner, role, days)


def _act(tokens: Client | StoredTokens, action: str, name: str, owner: str | None, role: str, days: int | None) -> None:
    if action == "list":
        _print_table(tokens.tokens())
    elif action == "revoke":
        print(f"revoked the token {tokens.revoke_token(name).name}")
    else:
        made = tokens.add_token(name, owner=owner, role=role, days=days)
        expires = "" if made.expires_at is None else f", expires {made.expires_at:%Y-%m-%d}"
        print(
            f"token {made.name} of {made.owner}, {made.role}{expires}; it is shown once:", file=sys.stderr, flush=True
        )
        print(made.token)


def _print_table(found: Sequence[ServiceToken]) -> None:
    from tuner.cli.output.parts import new_table, show
    from tuner.results import text

    table = new_table()
    for heading in ("token", "owner", "role", "made (UTC)", "expires", "used", "revoked"):
        table.add_column(heading, no_wrap=True)
    for each in found:
        times = (each.created_at, each.expires_at, each.used_at, each.revoked_at)
        cells = (text.ABSENT if at is None else f"{at:%Y-%m-%d %H:%M}" for at in times)
        table.add_row(each.name, each.owner, each.role, *cells)
    show(table, width=140) if found else print("no token; `tuner token add NAME` makes one")
