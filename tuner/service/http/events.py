"""Events of studies as server-sent events (the HTML standard's `text/event-stream`)."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from storage.errors import StorageError
from storage.service.records import Event, EventPosition
from storage.service.store import ServiceStore
from tuner.service.http.access import Caller, Known, readable
from tuner.service.http.context import ServiceContext, context_of
from tuner.service.http.problems import Problem

router = APIRouter(prefix="/v1/studies", tags=["events"])
Context = Annotated[ServiceContext, Depends(context_of)]

POLL_S = 0.5
"""Seconds between two reads of the new events of all studies, by one reader in each process."""

PAGE = 500
"""Events that one read returns at most."""

KEEP_ALIVE_S = 15.0
"""Seconds without an event after which a comment keeps the connection alive."""

MOST_STREAMS = 20
"""Open streams of one owner in one process."""


class Reader:
    """Reads the new events of all studies once for all streams of a process, and wakes the streams of each study.

    Args:
        store: the service's.
        happened: gets the new events of each read, for the metrics.
    """

    def __init__(self, store: ServiceStore, happened: Callable[[Sequence[Event]], None] = lambda _: None) -> None:
        self._store, self._happened = store, happened
        self._position: EventPosition | None = None
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.streams: dict[str, int] = defaultdict(int)
        """Open streams by owner."""
        self._task: asyncio.Task[None] | None = None
        self.closed = False
        """Whether the process ends, and every stream with it."""

    def start(self) -> None:
        """Start reading, in the running loop."""
        self._task = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Stop reading, and end every stream."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def _read(self) -> None:
        while True:
            try:
                found, self._position = await run_in_threadpool(self._store.new_events, self._position, PAGE)
            except StorageError:
                found = []
            self._happened(found)
            for name in {event.submission for event in found}:
                for event in self._waiting.get(name, ()):
                    event.set()
            if len(found) < PAGE:
                await asyncio.sleep(POLL_S)

    def wake(self, submission: str) -> asyncio.Event:
        """Return an event that is set when a study has new events."""
        event = asyncio.Event()
        self._waiting[submission].add(event)
        return event

    def forget(self, submission: str, event: asyncio.Event) -> None:
        """Stop setting an event."""
        self._waiting[submission].discard(event)
        if not self._waiting[submission]:
            del self._waiting[submission]


@router.get("/{id}/events", response_class=Response)
async def events(
    id: str,
    request: Request,
    who: Known,
    context: Context,
    after: Annotated[int, Query(ge=0)] = 0,
    follow: bool = True,
    last_event_id: Annotated[int | None, Header(ge=0)] = None,
) -> Response:
    """Return the events of a study after a number as a stream, which goes on while the study does.

    `Last-Event-ID`, which browsers send when they connect again, replaces `after`. With `follow=false` the stream ends
    with the last event so far.
    """
    await run_in_threadpool(readable, id, who, context)
    reader: Reader = request.app.state.reader
    if reader.streams[who.owner] >= MOST_STREAMS:
        rule = f"{MOST_STREAMS} streams of {who.owner} are open; close some"
        raise Problem(429, rule, headers={"Retry-After": "10"})
    number = after if last_event_id is None else last_event_id
    stream = _stream(id, number, who, context, reader, follow=follow)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _stream(
    id: str, number: int, who: Caller, context: ServiceContext, reader: Reader, *, follow: bool
) -> AsyncIterator[str]:
    reader.streams[who.owner] += 1
    wake = reader.wake(id)
    try:
        while True:
            wake.clear()
            found = await run_in_threadpool(context.service.events_after, id, number, PAGE)
            for event in found:
                number = event.number
                yield text_of(event)
            if len(found) == PAGE:
                continue
            if not follow or reader.closed:
                return
            try:
                await asyncio.wait_for(wake.wait(), KEEP_ALIVE_S)
            except TimeoutError:
                yield ": still here\n\n"
    finally:
        reader.forget(id, wake)
        reader.streams[who.owner] -= 1


def text_of(event: Event) -> str:
    """Return an event as a stream has it: id, kind, and one line of JSON with its time and data."""
    data = json.dumps({"at": event.at.isoformat(), **event.data}, ensure_ascii=True)
    return f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n"
