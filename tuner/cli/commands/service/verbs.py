"""`tuner stop`, `cancel`, `resume` and `delete`: the end of a study, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.cli.commands.service.watch import Id
from tuner.cli.from_server import open_client
from tuner.cli.options import Insecure, Server

if TYPE_CHECKING:
    from tuner.client.replies import SubmittedStudy


def stop(id: Id, server: Server = None, insecure: Insecure = False) -> None:
    """Let a study's running trials finish, then conclude it."""
    with open_client(server, insecure=insecure) as client:
        _say(client.stop(id))


def cancel(id: Id, server: Server = None, insecure: Insecure = False) -> None:
    """End a study at once, without a conclusion. Its finished trials are kept."""
    with open_client(server, insecure=insecure) as client:
        _say(client.cancel(id))


def resume(id: Id, server: Server = None, insecure: Insecure = False) -> None:
    """Queue a stopped, cancelled or failed study again. It goes on behind its last trial."""
    with open_client(server, insecure=insecure) as client:
        _say(client.resume(id))


def delete(id: Id, server: Server = None, insecure: Insecure = False) -> None:
    """Delete an ended study with its trials and files.

    What MLflow has of it stays there.
    """
    with open_client(server, insecure=insecure) as client:
        client.delete(id)
    print(f"{id} is deleted")


def _say(study: SubmittedStudy) -> None:
    print(f"{study.id} is {study.state.value}; see it with `tuner watch {study.id}`")
