"""The requests of the service's API, without sending them: what is sent, and how the answer is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from tuner.client.replies import LogPart, ServiceToken, SubmittedStudy, SubmittedTrial, json_of
from tuner.client.settings import new_id, with_contents
from tuner.settings.declared import QUEUE, settings_of
from tuner.settings.study import SubmitSettings

Answer = TypeVar("Answer")
SLOW_S = 300.0
"""Seconds that the server has for a report, which it draws first."""


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """A request.

    Attributes:
        method: of HTTP.
        path: below the server's address.
        read: returns what the answer says.
        query: parameters of the address; None is left out.
        body: sent as JSON; None: nothing is sent.
        repeatable: whether it may be sent again although the server may have done it.
        done_by: status with which the server refuses a repetition of what it has done, and what to ask then.
        timeout_s: seconds that the server has for its answer.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], Answer]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    repeatable: bool = True
    done_by: tuple[int, Call[Answer]] | None = None
    timeout_s: float = 60.0


def path_of(id: str, rest: str = "") -> str:
    """Return the path of a study; whatever the id, it is one part of the path."""
    name = quote(id, safe="")
    return f"/v1/studies/{'%2E' * len(name) if name in ('.', '..') else name}{rest}"


def is_status(outcome: httpx.Response | httpx.RequestError, status: int) -> bool:
    """Return whether a request was answered with this status."""
    return isinstance(outcome, httpx.Response) and outcome.status_code == status


def _study(reply: httpx.Response) -> SubmittedStudy:
    return SubmittedStudy.of(json_of(reply))


def _nothing(_: httpx.Response) -> None:
    return None


def submit(given: Mapping[str, Any]) -> Call[SubmittedStudy]:
    """Submit a study. It always has an id, so a repetition changes nothing.

    Args:
        given: settings of `SubmitSettings`, of which the server has the defaults.
    """
    queue = {name for name, (_, setting) in settings_of(SubmitSettings).items() if setting.panel == QUEUE}
    asked = {name: value for name, value in given.items() if name not in queue}
    body = {name: value for name, value in given.items() if name in queue and value is not None}
    body = {**body, "id": given.get("id") or new_id(), "settings": with_contents(asked)}
    return Call("POST", "/v1/studies", _study, body=body)


def study(id: str) -> Call[SubmittedStudy]:
    """Ask for one study."""
    return Call("GET", path_of(id), _study)


def page(query: Mapping[str, Any]) -> Call[tuple[list[SubmittedStudy], str | None]]:
    """Ask for a page of studies, and for the `after` of the next one."""

    def read(reply: httpx.Response) -> tuple[list[SubmittedStudy], str | None]:
        body = json_of(reply)
        return [SubmittedStudy.of(each) for each in body["studies"]], body["next"]

    return Call("GET", "/v1/studies", read, query)


def verb(id: str, name: str) -> Call[SubmittedStudy]:
    """Stop, cancel or resume a study; a repetition of what was done is refused with 409."""
    return Call("POST", path_of(id, f":{name}"), _study, done_by=(409, study(id)))


def delete(id: str) -> Call[None]:
    """Delete a study; a repetition of what was done is refused with 404."""
    return Call("DELETE", path_of(id), _nothing, done_by=(404, Call("GET", "/healthz", _nothing)))


def trials(id: str, after: int) -> Call[list[SubmittedTrial]]:
    """Ask for a page of the trials with a number above `after`."""

    def read(reply: httpx.Response) -> list[SubmittedTrial]:
        return [SubmittedTrial.of(each) for each in json_of(reply)]

    return Call("GET", path_of(id, "/trials"), read, {"after": after})


def document(id: str, part: str) -> Call[dict[str, Any]]:
    """Ask for a part of a study that is one JSON object."""
    return Call("GET", path_of(id, part), json_of)


def records(id: str) -> Call[list[dict[str, Any]]]:
    """Ask for a study as the server's database has it."""

    def read(reply: httpx.Response) -> list[dict[str, Any]]:
        return [json.loads(line) for line in reply.content.splitlines()]

    return Call("GET", path_of(id, "/records"), read, timeout_s=SLOW_S)


def report(id: str, others: Sequence[str]) -> Call[bytes]:
    """Ask for the report of a study, compared with others."""
    return Call("GET", path_of(id, "/report"), lambda reply: reply.content, {"other": [*others]}, timeout_s=SLOW_S)


def export(id: str, file: str, form: str, trial: int | None) -> Call[dict[str, str]]:
    """Ask for the contents of a deployment format's files by their names, the one called `file` first."""

    def read(reply: httpx.Response) -> dict[str, str]:
        if reply.headers.get("content-type", "").startswith("application/json"):
            return {str(name): str(text) for name, text in json_of(reply).items()}
        return {file: reply.content.decode()}

    plain = re.sub(r"[^A-Za-z0-9._-]", "_", file).lstrip("._-")[:100] or None
    return Call("GET", path_of(id, "/export"), read, {"format": form, "trial": trial, "file": plain})


def chart(id: str, name: str) -> Call[dict[str, Any]]:
    """Ask for a figure of the report."""
    return document(id, f"/charts/{quote(name, safe='')}")


def log(id: str, offset: int) -> Call[LogPart]:
    """Ask for bytes of the driver's log."""

    def read(reply: httpx.Response) -> LogPart:
        return LogPart(reply.content, offset, int(reply.headers.get("Tuner-Log-Size", offset + len(reply.content))))

    return Call("GET", path_of(id, "/log"), read, {"offset": offset})


def queue() -> Call[dict[str, Any]]:
    """Ask for the devices and the number of studies by state."""
    return Call("GET", "/v1/queue", json_of)


def tokens() -> Call[list[ServiceToken]]:
    """Ask for all tokens."""
    return Call("GET", "/v1/tokens", lambda reply: [ServiceToken.of(each) for each in json_of(reply)])


def add_token(body: Mapping[str, Any]) -> Call[ServiceToken]:
    """Make a token. It is not repeated once it was sent: its answer alone has the secret."""
    return Call("POST", "/v1/tokens", _token, body=body, repeatable=False)


def revoke_token(name: str) -> Call[ServiceToken]:
    """Make a token worthless."""
    return Call("POST", f"/v1/tokens/{quote(name, safe='')}:revoke", _token)


def _token(reply: httpx.Response) -> ServiceToken:
    return ServiceToken.of(json_of(reply))
