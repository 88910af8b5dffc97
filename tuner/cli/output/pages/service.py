"""The output of a service's commands: studies, their logs and their ends, and tokens."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import RenderableType

from records.tables import Grid, grid
from storage.service.records import ENDED, SubmissionState
from tuner.cli.arguments import command
from tuner.cli.from_server import open_client, refuse_two_places
from tuner.cli.output.parts import FittedTable, say, show
from tuner.cli.output.progress.lines import WatchedStudy
from tuner.cli.signals import ends_at_interrupt
from tuner.client.client import Client
from tuner.client.failures import RefusedError
from tuner.client.replies import ServiceToken, SubmittedStudy
from tuner.errors import EXIT_INTERRUPTED, EXIT_OURS, EXIT_SLOS_MISSED, EXIT_TIME_LIMIT, SettingError
from tuner.results import text
from tuner.use_cases.agent import serve_agent
from tuner.use_cases.places import storage_url

if TYPE_CHECKING:
    from tuner.service.tokens import StoredTokens

POLL_S = 1.0


def run_agent(server: str | None, *, insecure: bool) -> None:
    """Serve an agent until standard input ends; see `serve_agent`."""
    asyncio.run(serve_agent(server, insecure=insecure))


def print_submitted(study: SubmittedStudy, *, as_json: bool = False) -> None:
    """Print the state of a study that a command has changed."""
    if as_json:
        print(json_of(study))
    else:
        print(f"{study.id} is {study.state.value}; see it with `{command('service', 'watch', study.id)}`", flush=True)


def named_states(names: Sequence[str], *, running: bool) -> list[str]:
    """Return the states that are asked for: the named ones, and with `running` those before a study's end.

    Raises:
        SettingError: for an unknown state.
    """
    for each in names:
        if each.upper() not in SubmissionState.__members__:
            raise SettingError("state", each, f"states: {', '.join(SubmissionState.__members__)}")
    more = [each.value for each in SubmissionState if each not in ENDED] if running else []
    return [*(each.upper() for each in names), *more]


def json_of(value: SubmittedStudy | Sequence[SubmittedStudy]) -> str:
    """Return studies as JSON, with the names and forms of the service's API."""
    plain = asdict(value) if isinstance(value, SubmittedStudy) else [asdict(each) for each in value]
    return json.dumps(plain, indent=1, default=lambda each: each.isoformat())


def print_studies(found: Sequence[SubmittedStudy], *, as_json: bool) -> None:
    if as_json:
        print(json_of(found))
    elif found:
        _print_table(found)
    else:
        print("no study; `tuner service submit` submits one")


def _print_table(studies: Sequence[SubmittedStudy]) -> None:
    names = ("study", "owner", "state", "devices", "trials", "score", "submitted (UTC)", "why")
    table = grid(*names, left=tuple(name for name in names if name not in ("trials", "score")))
    for study in studies:
        table.add(
            study.id,
            study.owner,
            study.state.value,
            _devices(study),
            *_progress(study),
            _time(study.created_at),
            why(study),
        )
    show(FittedTable(table))


def print_study(study: SubmittedStudy, *, as_json: bool) -> None:
    if as_json:
        print(json_of(study))
        return
    trials, score = _progress(study)
    facts = {
        "owner": study.owner + (", readable by all" if study.shared else ""),
        "state": study.state.value,
        "why": why(study),
        "devices": _devices(study) + (f": {', '.join(study.granted)}" if study.granted else ""),
        "priority": str(study.priority),
        "deployed": "" if study.watch is None else text.one_line(study.watch["text"]),
        "trials": trials,
        "best score": score,
        "device time": text.duration(study.gpu_seconds),
        "submitted": _time(study.created_at),
        "started": _time(study.started_at),
        "ended": _time(study.ended_at),
    }
    settings = {name: _short(value) for name, value in (study.settings or {}).items()}
    width = max(map(len, [*facts, *settings]))
    shown: list[RenderableType] = [study.id]
    shown += [f"  {name:<{width}}  {value}" for name, value in facts.items() if value not in ("", text.ABSENT)]
    shown += ["settings", *(f"  {name:<{width}}  {value}" for name, value in settings.items())] if settings else []
    show(*shown)


def why(study: SubmittedStudy) -> str:
    """Return why a study waits or ended; empty if there is nothing to say."""
    return text.one_line(study.waits_for or study.reason or "")


def _devices(study: SubmittedStudy) -> str:
    return f"{len(study.granted) or study.gpus} {study.kind}"


def _progress(study: SubmittedStudy) -> tuple[str, str]:
    if study.progress is None:
        return text.ABSENT, text.ABSENT
    found = study.progress
    trials = f"{found.trials}" + (f" + {found.rounds}" if found.rounds else "")
    return trials, text.ABSENT if found.score is None else f"{found.score:.3f}"


def _time(at: datetime | None) -> str:
    return text.ABSENT if at is None else f"{at:%Y-%m-%d %H:%M}"


def _short(value: object) -> str:
    return text.cut(json.dumps(value, ensure_ascii=False), 100)


def print_log(client: Client, id: str, *, follow: bool) -> None:
    """Print the log of a study's driver; `follow` waits for further lines until the study has ended."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    for content in _contents(client, id, follow=follow):
        sys.stdout.write(decode(content))
        sys.stdout.flush()


def _contents(client: Client, id: str, *, follow: bool) -> Iterator[bytes]:
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


def watch_study(client: Client, id: str) -> int:
    """Print what happens to a study until it has ended, and return the exit code."""
    shown, again = WatchedStudy(), command("service", "watch", id)
    with ends_at_interrupt(f"stopped watching; the study goes on, `{again}` watches it again"):
        for event in client.events(id):
            for line in shown.lines(event):
                say(line)
        return _end(client, id, simulated=bool(shown.simulated))


def _end(client: Client, id: str, *, simulated: bool) -> int:
    """Print how a study ended, and return the exit code."""
    study = client.study(id)
    print(f"{id} is {study.state.value}" + (f": {text.one_line(study.reason)}" if study.reason else ""))
    if study.state is SubmissionState.FAILED:
        print(f"see why: {command('service', 'logs', id)}")
        return EXIT_OURS
    if study.state is SubmissionState.CANCELLED:
        return EXIT_INTERRUPTED
    conclusion = client.conclusion(id)
    if conclusion is None:
        print(f"continue with: {command('service', 'resume', id)}")
        return EXIT_TIME_LIMIT
    if "shapes" in conclusion:
        return _print_sizing(client, study)
    if simulated:
        print("all figures are predicted, not measured")
    print(f"see its result: tuner study show {id} --server {client.server}")
    if study.state is SubmissionState.STOPPED and not conclusion.get("confirmed"):
        print(f"continue with: {command('service', 'resume', id)}")
        return EXIT_TIME_LIMIT
    if conclusion.get("nearest") is not None:
        return EXIT_SLOS_MISSED
    if conclusion.get("winner") is not None:
        return 0
    states = {trial.state for trial in client.trials(id)}
    return EXIT_SLOS_MISSED if "infeasible" in states else EXIT_OURS


def watch_deployed(server: str | None, study: str, urls: Sequence[str], window_s: float, *, insecure: bool) -> None:
    """Let a service compare deployed servers with a study; no URL: no longer."""
    with open_client(server, insecure=insecure) as client:
        found = client.watch_servers(study, urls, window_s) if urls else client.unwatch_servers(study)
    print(f"{study}: deployed servers: " + ("none" if found.watch is None else text.one_line(found.watch["text"])))


def _print_sizing(client: Client, study: SubmittedStudy) -> int:
    found = client.summary(study.id)
    if found["simulated"]:
        print(text.BANNER)
    kept = next(part for section in found["sections"] for part in section["parts"] if part["kind"] == "table")
    show(FittedTable(Grid.from_dict(kept)))
    print(f"see its report: {client.server}/#/study/{study.id}")
    return 0 if found["tiles"] else EXIT_SLOS_MISSED


@contextmanager
def open_tokens(
    server: str | None, storage: str | None, *, create: bool, insecure: bool
) -> Iterator[Client | StoredTokens]:
    """Yield the tokens of a database, or of a server where one is given or in TUNER_SERVER.

    Raises:
        UserError: if both are given.
    """
    from tuner.service.tokens import StoredTokens  # no other command of a client needs a service's libraries

    refuse_two_places(server, storage)
    if server is None and (storage is not None or not os.environ.get("TUNER_SERVER")):
        with closing(StoredTokens(storage_url(storage, create=create))) as tokens:
            yield tokens
    else:
        with open_client(server, insecure=insecure) as client:
            yield client


def print_new_token(made: ServiceToken) -> None:
    """Print a new token on standard output, and what it is on standard error."""
    expires = "" if made.expires_at is None else f", expires {made.expires_at:%Y-%m-%d}"
    print(f"token {made.name} of {made.owner}, {made.role}{expires}; it is shown once:", file=sys.stderr, flush=True)
    print(made.token)


def print_tokens(found: Sequence[ServiceToken]) -> None:
    names = ("token", "owner", "role", "made (UTC)", "expires", "used", "revoked")
    table = grid(*names, left=names)
    for each in found:
        times = (each.created_at, each.expires_at, each.used_at, each.revoked_at)
        table.add(each.name, each.owner, each.role, *map(_time, times))
    show(FittedTable(table)) if found else print("no token; `tuner service token add NAME` makes one")
