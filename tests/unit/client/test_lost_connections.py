"""Requests that get lost, and servers that fail: what is sent again, and what becomes an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.unit.client.conftest import MakeClient
from tuner.client.failures import WAITS_S, RefusedError
from tuner.errors import InfrastructureError

URL = "http://127.0.0.1:8600"
TOKEN = "tnr_" + "a1" * 32
AT = "2026-11-26T09:00:00+00:00"
STUDY = {
    **dict.fromkeys(("reason", "culprit", "waits_for", "started_at", "ended_at", "heartbeat_at", "progress")),
    **{"id": "s", "owner": "ada", "state": "QUEUED", "kind": "cpu", "gpus": 1, "granted": [], "priority": 0},
    **{"shared": False, "created_at": AT, "queued_at": AT, "gpu_seconds": 0.0, "settings": {}, "of_a_newer_server": 1},
}
TOKEN_BODY = {"name": "z", "owner": "z", "role": "user", "created_at": AT, "token": "tnr_z"} | dict.fromkeys(
    ("expires_at", "revoked_at", "used_at")
)
Step = httpx.Response | Exception


class Script:
    """A server that does one step for each request, and notes the requests."""

    def __init__(self, *steps: Step) -> None:
        self.steps = [*steps]
        self.requests: list[str] = []
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(f"{request.method} {request.url.path}")
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


def ok(body: Any = STUDY, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=body)


def problem(status: int, detail: str = "d", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"status": status, "detail": detail}, headers=headers)


LOST = httpx.ReadError("reset")
UNSENT = httpx.ConnectError("refused")


@pytest.fixture
def run(make_client: MakeClient) -> Callable[..., tuple[Any, Script]]:
    def start(*steps: Step) -> tuple[Any, Script]:
        script = Script(*steps)
        return make_client(URL, TOKEN, script.transport), script

    return start


def test_a_lost_submission_is_sent_again_with_the_same_id(make_client: MakeClient) -> None:
    bodies: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        if len(bodies) < 3:
            raise LOST
        return ok()

    client = make_client(URL, TOKEN, httpx.MockTransport(answer))
    assert client.submit(trials=2).id == "s"
    assert len({*bodies}) == 1
    assert [0.75 * wait <= slept <= 1.25 * wait for wait, slept in zip(WAITS_S, client.slept, strict=False)] == [
        True
    ] * 2


def test_a_server_that_never_answers_is_an_error_of_one_line(run: Callable[..., tuple[Any, Script]]) -> None:
    client, script = run(*[UNSENT] * 5)
    with pytest.raises(InfrastructureError, match=r"no server answers at http://127.0.0.1:8600 \(refused\); start"):
        client.study("s")
    assert (len(script.requests), len(client.slept)) == (5, 4)


def test_a_busy_server_is_asked_again_when_it_says(run: Callable[..., tuple[Any, Script]]) -> None:
    client, _ = run(problem(503, **{"Retry-After": "3"}), problem(429, **{"Retry-After": "9999"}), ok())
    assert client.study("s").id == "s"
    assert client.slept == [3.0, 10.0]


def test_a_server_that_is_asked_too_often_is_asked_again_also_for_a_token(
    run: Callable[..., tuple[Any, Script]],
) -> None:
    client, script = run(problem(429, **{"Retry-After": "2"}), ok(TOKEN_BODY, 201))
    assert client.add_token("z").token == "tnr_z"
    assert (len(script.requests), client.slept) == (2, [2.0])
    client, script = run(*[problem(429, "too many requests: wait 1 s", **{"Retry-After": "1"})] * 5)
    with pytest.raises(InfrastructureError, match="is asked too often: too many requests: wait 1 s"):
        client.study("s")
    assert len(script.requests) == 5


def test_an_internal_error_is_not_asked_for_again(run: Callable[..., tuple[Any, Script]]) -> None:
    client, script = run(problem(500, "internal error:\nKeyError"))
    with pytest.raises(InfrastructureError, match="internal error: KeyError; try again later"):
        client.study("s")
    assert len(script.requests) == 1


def test_a_token_is_not_made_twice(run: Callable[..., tuple[Any, Script]]) -> None:
    client, script = run(UNSENT, ok(TOKEN_BODY, 201))
    assert client.add_token("z").token == "tnr_z"
    client, script = run(LOST)
    with pytest.raises(InfrastructureError, match=r"the connection to .* was lost"):
        client.add_token("z")
    assert len(script.requests) == 1


@pytest.mark.parametrize("verb", ["stop", "cancel", "resume"])
def test_a_verb_that_was_done_before_its_answer_got_lost_is_done(
    run: Callable[..., tuple[Any, Script]], verb: str
) -> None:
    client, script = run(LOST, problem(409), ok())
    assert getattr(client, verb)("s").id == "s"
    assert script.requests == [f"POST /v1/studies/s:{verb}"] * 2 + ["GET /v1/studies/s"]
    client, _ = run(problem(409, "it has ended"))
    with pytest.raises(RefusedError, match="it has ended"):
        getattr(client, verb)("s")


def test_a_deletion_that_was_done_before_its_answer_got_lost_is_done(run: Callable[..., tuple[Any, Script]]) -> None:
    client, script = run(LOST, problem(404))
    client.delete("s")
    assert script.requests == ["DELETE /v1/studies/s"] * 2


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"status_code": 200, "text": "<html>"}, "is not a tuner's server; check the address"),
        ({"status_code": 404, "text": "<html>"}, r"is not a tuner's server \(status 404\); check the address"),
        ({"status_code": 308, "headers": {"location": "https://b.example/"}}, "has moved to https://b.example/"),
    ],
)
def test_what_is_not_a_tuners_server_is_named(
    run: Callable[..., tuple[Any, Script]], answer: dict[str, Any], text: str
) -> None:
    client, script = run(httpx.Response(**answer))
    with pytest.raises((InfrastructureError, RefusedError), match=text):
        client.study("s")
    assert len(script.requests) == 1
