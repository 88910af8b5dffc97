"""The commands of `tuner service token`: on the service's database, or of a server with an admin's token."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner.cli.help import option
from tuner.cli.options import Insecure, Server, Storage
from tuner.cli.output import pages

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.", show_default=False)]


def add(
    name: Name,
    owner: Annotated[
        str | None, option(None, "NAME", "Whose studies it submits and reads.", shown="the token's name")
    ] = None,
    role: Annotated[str, option(None, "ROLE", "What it may do: viewer, user or admin.")] = "user",
    days: Annotated[
        int | None, option(None, "INTEGER", "Days until it expires.", shown="never", least=1, most=3650)
    ] = None,
    storage: Storage = None,
    server: Server = None,
    insecure: Insecure = False,
) -> None:
    """Add a token.

    It is printed once, alone on standard output; the database has only its hash.

    tuner service token add ada --days 90
    """
    with pages.service.open_tokens(server, storage, create=True, insecure=insecure) as tokens:
        pages.service.print_new_token(tokens.add_token(name, owner=owner, role=role, days=days))


def list_(storage: Storage = None, server: Server = None, insecure: Insecure = False) -> None:
    """List the tokens, without their secrets."""
    with pages.service.open_tokens(server, storage, create=False, insecure=insecure) as tokens:
        pages.service.print_tokens(tokens.tokens())


def revoke(name: Name, storage: Storage = None, server: Server = None, insecure: Insecure = False) -> None:
    """Make a token worthless from now on."""
    with pages.service.open_tokens(server, storage, create=False, insecure=insecure) as tokens:
        print(f"revoked the token {tokens.revoke_token(name).name}")
