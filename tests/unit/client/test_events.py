"""Events of a study: each once and in order, over lost connections and restarts of the server, until its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from storage.service.records import SubmissionState
from tests.served import Served, context_at, listening, serving
from tests.unit.client.conftest import MakeClient
from tests.unit.client.test_lost_connections import AT, STUDY, TOKEN, URL, ok
from tuner.client.client import AsyncClient, Client
from tuner.client.failures import PATIENT_WAITS_S, RefusedError
from tuner.client.streams import EventPlace
from tuner.errors import InfrastructureError


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
