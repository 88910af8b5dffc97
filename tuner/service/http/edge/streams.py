"""The open streams of events of a process: who may go on reading, how many may be open, and what wakes them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from fastapi.concurrency import run_in_threadpool

from storage.errors import StorageError
from storage.service.records import Event
from storage.service.store import ServiceStore
from tuner.service.http.access import caller_of
from tuner.service.http.problems import Problem

POLL_S = 0.25
"""Seconds between two reads of the new events of all studies, by one reader in each process."""

PAGE = 500
"""Events that one read returns at most."""

CHECK_S = 2.0
"""Seconds between two looks at whether the open streams are still allowed."""

MOST_STREAMS = 20
"""Open streams of one owner in one process."""

MOST_IN_ALL = 500
"""Open streams of one process: each is a connection, of which the server has 1000."""

AGAIN_S = 10
"""Seconds after which a stream that is one too many may be asked for again."""


@dataclass(eq=False)
class Stream:
    """An open stream.

    Attributes:
        study: whose events it sends.
        owner: of the token that it was opened with.
        digest: of that token.
        wake: is set when the study has new events, and when the stream has to end.
        fresh: new events of the study that the stream has not taken yet.
        ended: whether it has to end.
    """

    study: str
    owner: str
    digest: str
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    fresh: list[Event] = field(default_factory=list)
    ended: bool = False

    def add(self, event: Event) -> None:
        """Keep a new event for the stream and wake it. One whose client does not read loses its oldest ones."""
        if len(self.fresh) == PAGE:
            self.fresh.clear()
        self.fresh.append(event)
        self.wake.set()

    def take(self, number: int) -> list[Event] | None:
        """Return the new events after a number and forget them; None if one may be missing, so that all are read."""
        fresh, self.fresh = self.fresh, []  # numbers in a row
        if not fresh or fresh[0].number > number + 1:
            return None
        return [event for event in fresh if event.number > number]

    def end(self) -> None:
        self.ended = True
        self.wake.set()


class Streams:
    """The open streams of a process.

    One task reads the new events of all studies and gives them to the streams of each study. Another one ends the
    streams whose token was revoked or has expired, and those of studies that their owner may no longer read.

    Args:
        store: the service's.
        clock: returns the present time.
        happened: gets the new events of each read, for the metrics.
    """

    def __init__(
        self,
        store: ServiceStore,
        clock: Callable[[], datetime],
        happened: Callable[[Sequence[Event]], None] = lambda _: None,
    ) -> None:
        self._store, self._clock, self._happened = store, clock, happened
        self._began = clock()
        self._numbers: dict[str, int] = {}
        self._followed: set[str] = set()
        self._open: dict[str, set[Stream]] = defaultdict(set)
        self._tasks: list[asyncio.Task[None]] = []
        self.closed = False
        """Whether the process ends, and every stream with it."""

    def start(self) -> None:
        """Start reading and checking, in the running loop."""
        self._tasks = [asyncio.create_task(each) for each in (self._read(), self._check())]

    async def close(self) -> None:
        """Stop reading and checking, and end every stream."""
        self.closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self._all():
            stream.end()

    def add(self, study: str, owner: str, digest: str) -> Stream:
        """Add a stream, which counts until it is removed.

        Raises:
            Problem: 429 if too many are open.
        """
        streams = self._all()
        own = sum(each.owner == owner for each in streams)
        if own >= MOST_STREAMS or len(streams) >= MOST_IN_ALL:
            whose = f"{MOST_STREAMS} streams of {owner}" if own >= MOST_STREAMS else f"{MOST_IN_ALL} streams"
            rule = f"{whose} are open, and no more may be"
            raise Problem(429, f"{rule}; close some", rule=rule, headers={"Retry-After": str(AGAIN_S)})
        stream = Stream(study, owner, digest)
        self._open[study].add(stream)
        if self.closed:
            stream.end()
        return stream

    def remove(self, stream: Stream) -> None:
        """Count a stream no more."""
        streams = self._open[stream.study]
        streams.discard(stream)
        if not streams:
            del self._open[stream.study]

    def _all(self) -> list[Stream]:
        return [each for streams in self._open.values() for each in streams]

    async def _read(self) -> None:
        while True:
            with suppress(StorageError):
                await self._read_new()
            await asyncio.sleep(POLL_S)

    async def _read_new(self) -> None:
        """Read the events since the last read, and of a study that was never read, all.

        The metrics count those since the start. An ended study's number is kept: it may be resumed.
        """
        last = await run_in_threadpool(self._store.last_events, {*self._followed, *self._open})
        for study, (number, _) in last.items():
            before = self._numbers.get(study, 0)
            if before > number:  # a later one of that name
                before = 0
            while before < number:
                found = await run_in_threadpool(self._store.events_after, study, before, PAGE)
                if not found:
                    break
                before = self._numbers[study] = found[-1].number
                self._happened([event for event in found if event.at >= self._began])
                for stream in self._open.get(study, ()):
                    for event in found:
                        stream.add(event)
        self._followed = {study for study, (_, has_ended) in last.items() if not has_ended}

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            streams = self._all()
            with suppress(StorageError):  # without its database, the server has no new event to send either
                for stream in await run_in_threadpool(self._refused, streams) if streams else ():
                    stream.end()

    def _refused(self, streams: Iterable[Stream]) -> list[Stream]:
        """Return the streams that have to end, with a query for the tokens and one for the studies of each owner."""
        now = self._clock()
        found = self._store.tokens_of({each.digest for each in streams})
        readers = {digest: caller_of(token, now).reads_as for digest, token in found.items() if token.is_valid(now)}
        studies: dict[str | None, set[str]] = defaultdict(set)
        for each in streams:
            if each.digest in readers:
                studies[readers[each.digest]].add(each.study)
        allowed = {owner: set(self._store.readable_of(names, owner)) for owner, names in studies.items()}
        return [
            each for each in streams if each.digest not in readers or each.study not in allowed[readers[each.digest]]
        ]
