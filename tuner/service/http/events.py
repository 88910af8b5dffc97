"""Events of studies as server-sent events (the HTML standard's `text/event-stream`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from storage.service.records import Event
from tuner.service.http.access import Known, Readable, given_digest
from tuner.service.http.context import Context, ServiceContext
from tuner.service.http.edge.described import event_stream
from tuner.service.http.edge.streams import PAGE, Stream, Streams

router = APIRouter(prefix="/v1/studies", tags=["events"])

KEEP_ALIVE_S = 15.0
"""Seconds without an event after which a comment keeps the connection alive."""


@router.get("/{id}/events", response_class=Response, responses=event_stream())
async def events(
    found: Readable,
    request: Request,
    who: Known,
    context: Context,
    after: Annotated[int, Query(ge=0)] = 0,
    follow: bool = True,
    last_event_id: Annotated[int | None, Header(ge=0)] = None,
) -> Response:
    """Return the events of a study after a number as a stream, which goes on until the client closes it.

    `Last-Event-ID`, which browsers send when they connect again, replaces `after`. With `follow=false` the stream ends
    with the last event so far. It also ends within seconds after its token was revoked or has expired, or the study is
    no longer there for its owner.
    """
    streams: Streams = request.app.state.streams
    stream = streams.add(found.id, who.owner, given_digest(request))
    number = after if last_event_id is None else last_event_id
    return EventResponse(_texts(stream, number, context, follow=follow), stream, streams)


class EventResponse(StreamingResponse):
    """A stream of events, which counts as open until it is sent or its client has gone."""

    def __init__(self, content: AsyncIterator[str], stream: Stream, streams: Streams) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._stream, self._streams = stream, streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.remove(self._stream)


async def _texts(stream: Stream, number: int, context: ServiceContext, *, follow: bool) -> AsyncIterator[str]:
    """Yield the events after a number, and comments where none comes.

    The first ones, and those after a gap, are read from the database; the others come with the stream.
    """
    found = None
    while True:
        if found is None:
            found = await run_in_threadpool(context.service.events_after, stream.study, number, PAGE)
        for event in found:
            if stream.ended:
                return
            number = event.number
            yield context.places.hidden_text(text_of(event))
        if len(found) == PAGE:
            found = None
            continue
        if not follow or stream.ended:
            return
        found = []
        try:
            await asyncio.wait_for(stream.wake.wait(), KEEP_ALIVE_S)
        except TimeoutError:
            yield ": still here\n\n"
        else:
            stream.wake.clear()
            found = stream.take(number)


def text_of(event: Event) -> str:
    """Return an event as a stream has it: id, kind, and one line of JSON with its time and data."""
    data = json.dumps({"at": event.at.isoformat(), **event.data}, ensure_ascii=True)
    return f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n"
