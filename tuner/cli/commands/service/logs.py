"""`tuner logs`: the log of a study's driver."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from tuner.cli.commands.service.watch import Id
from tuner.cli.from_server import open_client
from tuner.cli.help import flag
from tuner.cli.options import Insecure, Server

if TYPE_CHECKING:
    from tuner.client.client import Client

POLL_S = 1.0


def logs(
    id: Id,
    follow: Annotated[bool, flag(None, "Wait for further lines until the study has ended.", "--follow", "-f")] = False,
    server: Server = None,
    insecure: Insecure = False,
) -> None:
    """Print the log of a study of a service.

    It is what the study's driver wrote: settings, warnings, and why it failed. The logs of servers are with the trials.
    """
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    with open_client(server, insecure=insecure) as client:
        for content in _contents(client, id, follow=follow):
            sys.stdout.write(decode(content))
            sys.stdout.flush()


def _contents(client: Client, id: str, *, follow: bool) -> Iterator[bytes]:
    """Yield the log in parts."""
    from tuner.client.failures import RefusedError

    offset = 0
    while True:
        ended = not follow or client.study(id).ended  # before the log is read, so that its end is read, too
        try:
            part = client.log(id, offset)
        except RefusedError as error:
            if error.status != 404 or ended:
                raise
            part = None  # it waits and has no log yet
        if part is not None and part.content:
            offset = part.end
            yield part.content
        elif ended:
            return
        else:
            time.sleep(POLL_S)
