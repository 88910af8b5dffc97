"""Events of a study over lost connections."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from storage.service.records import SubmissionState
from tests.served import Served, context_at, listening, serving
from tests.unit.client.conftest import MakeClient
from tuner.client.client import AsyncClient, Client
from tuner.client.failures import PATIENT_WAITS_S, WAITS_S, RefusedError
from tuner.client.streams import EventPlace
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


def text_of(number: int, kind: str = "note", **data: Any) -> str:
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps({'at': AT, **data})}\n\n"


def test_lines_become_events() -> None:
    place = EventPlace()
    lines = (": still here\n\n" + text_of(1, "queued", state="QUEUED") + text_of(2, text="a: b")).split("\n")
    first, second = [event for line in lines if (event := place.read(line)) is not None]
    assert (first.number, first.kind, first.state, first.data) == (1, "queued", "QUEUED", {"state": "QUEUED"})
    assert (second.data, second.state, second.at.isoformat()) == ({"text": "a: b"}, None, AT)
    assert (place.number, place.state, place.ended) == (2, SubmissionState.QUEUED, False)
    assert [place.read(line) for line in text_of(2, text="again").split("\n")] == [None] * 5


def test_a_trials_state_is_not_the_studys() -> None:
    place = EventPlace()
    (event,) = [event for line in text_of(1, "trial", state="ok").split("\n") if (event := place.read(line))]
    assert (event.state, place.state) == (None, None)


def test_the_events_of_a_study_that_ended_and_went_on(served: Served, ada: Any) -> None:
    if served.service.submission("again") is None:
        served.submit("again")
        served.start("again")
        served.end("again", SubmissionState.STOPPED, "asked")
        served.service.resume("again", served.now())
        served.start("again")
        served.end("again", SubmissionState.DONE)
    kinds = [event.kind for event in ada.events("again")]
    assert kinds == ["queued", "started", "stopped", "queued", "started", "done"]
    assert [event.number for event in ada.events("again", after=4)] == [5, 6]
    assert [*ada.events("again", after=6)] == []


def test_without_following_only_what_is_there(served: Served, ada: Any) -> None:
    if served.service.submission("there") is None:
        served.submit("there")
    assert [event.kind for event in ada.events("there", follow=False)] == ["queued"]
    with pytest.raises(RefusedError, match="there is no study 'nope'"):
        [*ada.events("nope")]


def test_new_events_come_while_the_stream_is_open(served: Served) -> None:
    served.submit("live")
    with Client(served.url, served.tokens["ada"]) as client:
        events = client.events("live")
        assert next(events).kind == "queued"
        served.start("live")
        assert next(events).kind == "started"
        served.end("live", SubmissionState.DONE)
        assert [event.kind for event in events] == ["done"]


def test_new_events_come_to_the_asynchronous_client(served: Served) -> None:
    async def watch() -> list[str]:
        async with AsyncClient(served.url, served.tokens["ada"]) as client:
            events = client.events("alive")
            kinds = [(await anext(events)).kind]
            await asyncio.to_thread(served.start, "alive")
            kinds.append((await anext(events)).kind)
            await asyncio.to_thread(served.end, "alive", SubmissionState.DONE)
            return kinds + [event.kind async for event in events]

    served.submit("alive")
    assert asyncio.run(watch()) == ["queued", "started", "done"]


def test_a_restart_of_the_server_loses_no_event(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.submit("s")
        with listening(context_at(served)) as port:
            client = Client(f"http://127.0.0.1:{port}", served.tokens["ada"])
            events = client.events("s")
            assert next(events).number == 1
            served.start("s")
            assert next(events).number == 2
        served.service.event("s", "note", {"text": "while it was down"}, served.now())
        with listening(context_at(served), port), client:
            served.end("s", SubmissionState.DONE)
            assert [(event.number, event.kind) for event in events] == [(3, "note"), (4, "done")]


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream that is lost behind its text."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()

    def __iter__(self) -> Iterator[bytes]:
        yield self._text
        raise httpx.ReadError("reset")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._text
        raise httpx.ReadError("reset")


def test_a_stream_is_taken_up_behind_its_last_whole_event(make_client: MakeClient) -> None:
    asked: list[tuple[str, str]] = []
    running, done = {**STUDY, "state": "RUNNING"}, {**STUDY, "state": "DONE"}
    end = text_of(3, "done", state="DONE")
    answers = [
        (ok(running), httpx.Response(200, stream=Broken(text_of(1)))),  # lost while the past is read
        (ok(running), httpx.Response(200, text=text_of(1))),  # the past again, and no more
        (None, httpx.Response(200, stream=Broken(text_of(2) + end[:20]))),  # lost in the middle of an event
        (ok(running), httpx.Response(200, text="")),
        (None, httpx.Response(200, text=end)),
        (ok(done), httpx.Response(200, text="")),
    ]
    queue = [answer for pair in answers for answer in pair if answer is not None]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            asked.append((request.headers["last-event-id"], request.url.params["follow"]))
        return queue.pop(0)

    client = make_client(URL, TOKEN, httpx.MockTransport(answer))
    assert [event.number for event in client.events("s")] == [1, 2, 3]
    assert asked == [("0", "false"), ("1", "false"), ("1", "true"), ("2", "false"), ("2", "true"), ("3", "false")]
    assert len(client.slept) == 2


def test_a_stream_that_is_always_lost_is_an_error_in_the_end(make_client: MakeClient) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Broken("")) if request.url.path.endswith("/events") else ok()

    client = make_client(URL, TOKEN, httpx.MockTransport(answer))
    with pytest.raises(InfrastructureError, match="was lost"):
        [*client.events("s")]
    assert len(client.slept) == len(PATIENT_WAITS_S)
    assert 280 < sum(PATIENT_WAITS_S) < 320
