"""Commands that ask a service, and commands of a database that read a server's studies instead."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from tuner.cli.help import Command, option, parameters_of, set_parameters
from tuner.cli.options import Insecure, refuse_both
from tuner.settings.declared import OUTPUT

if TYPE_CHECKING:
    from tuner.client.client import Client

ServerInstead = Annotated[
    str | None,
    option(
        OUTPUT, "URL", "Read from this `tuner serve` instead; the token is in $TUNER_TOKEN.", "--server", shown="none"
    ),
]
Names = Sequence[str | None] | None
"""Names of studies; None among them: the latest one. None: all."""


def open_client(server: str | None, *, insecure: bool) -> Client:
    """Return a client of the server that is given, else of that in TUNER_SERVER."""
    from tuner.client.client import Client  # httpx takes a third of a second

    return Client(server, insecure=insecure)


def reads_server(names: Callable[[Mapping[str, Any]], Names]) -> Callable[[Command], Command]:
    """Give a command that reads a database the options to read a server: it then reads a copy of the studies.

    Args:
        names: returns the studies that the command reads, of the values of its parameters.
    """

    def wrap(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(*, server: str | None = None, insecure: bool = False, **values: Any) -> None:
            if server is None:
                command(**values)
                return
            refuse_two_places(server, values.get("storage"))
            from tuner.use_cases.files import copied  # no help needs the libraries of a database

            with open_client(server, insecure=insecure) as client, copied(client, names(values)) as url:
                command(**{**values, "storage": url})

        own = parameters_of(command).values()
        set_parameters(wrapped, own, server=(ServerInstead, None), insecure=(Insecure, False))
        return wrapped

    return wrap


def refuse_two_places(server: str | None, storage: str | None) -> None:
    """Refuse a server and a database at once."""
    refuse_both("--server", "--storage", given=server is not None and storage is not None)
