"""`tuner watch`: a study of a service as it runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.from_server import open_client
from tuner.cli.options import Insecure, Server
from tuner.errors import EXIT_INTERRUPTED, EXIT_OURS, EXIT_SLOS_MISSED, EXIT_TIME_LIMIT

if TYPE_CHECKING:
    from tuner.client.client import Client

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the study.", show_default=False)]


def watch(id: Id, server: Server = None, insecure: Insecure = False) -> None:
    """Watch a study of a service until it has ended.

    Prints a line for each stage and trial, the past ones first. Ctrl-C ends the command, not the study. Exits as `tuner
    optimize` does: 0 with a result, 1 if the study failed, 3 if nothing meets the SLOs, 4 if its time ended before it
    had a result, 130 if it was cancelled.
    """
    with open_client(server, insecure=insecure) as client:
        raise typer.Exit(watch_study(client, id))


def watch_study(client: Client, id: str) -> int:
    """Print what happens to a study until it has ended, and return the exit code."""
    from tuner.cli.output.progress.lines import WatchedStudy

    shown = WatchedStudy()
    try:
        for event in client.events(id):
            for line in shown.lines(event):
                print(line, file=sys.stderr, flush=True)
        return _end(client, id, simulated=bool(shown.simulated))
    except KeyboardInterrupt:
        print(f"stopped watching; the study goes on, `tuner watch {id}` watches it again", file=sys.stderr)
        return EXIT_INTERRUPTED


def _end(client: Client, id: str, *, simulated: bool) -> int:
    """Print how a study ended, and return the exit code."""
    from storage.service.records import SubmissionState
    from tuner.results import text

    study = client.study(id)
    print(f"{id} is {study.state.value}" + (f": {text.one_line(study.reason)}" if study.reason else ""))
    if study.state is SubmissionState.FAILED:
        print(f"see why: tuner logs {id}")
        return EXIT_OURS
    if study.state is SubmissionState.CANCELLED:
        return EXIT_INTERRUPTED
    conclusion = client.conclusion(id)
    if conclusion is None:
        print(f"continue with: tuner resume {id}")
        return EXIT_TIME_LIMIT
    if simulated:
        print("all figures are predicted, not measured")
    print(f"see its result: tuner best --study {id} --server {client.server}")
    if conclusion.get("nearest") is not None:
        return EXIT_SLOS_MISSED
    if conclusion.get("winner") is not None:
        return 0
    states = {trial.state for trial in client.trials(id)}
    return EXIT_SLOS_MISSED if "infeasible" in states else EXIT_OURS
