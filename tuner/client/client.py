"""The clients of the service for programs: `tuner.Client` and `tuner.AsyncClient`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import TypeVar

import httpx

from tuner.client.address import find_address
from tuner.client.calls import Calls
from tuner.client.flows import Call, Flow, Flows, Outcome
from tuner.client.replies import StudyEvent
from tuner.client.streams import EventPlace

Answer = TypeVar("Answer")
Raised = type[BaseException] | BaseException | TracebackType | None


class Client(Calls):
    """Asks a `tuner serve`, and asks again after a lost connection.

    Args:
        server: its URL; None: TUNER_SERVER.
        token: None: TUNER_TOKEN. No text or error shows it.
        insecure: whether the token may be sent without TLS to another machine.
        transport: how httpx sends requests; None: over the network.
        sleep: waits before a request is sent again.

    Raises:
        SettingError: by every method, for a value that the server refuses, with its field; and by this one, see
            `tuner.client.address.find_address`.
        UserError: by every method, if the server refuses a request: no valid token, not allowed, not there, or not in
            this state.
        InfrastructureError: by every method, if the server is not reached, or fails.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        insecure: bool = False,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        address = find_address(server, token, insecure=insecure)
        self.server, self._sleep = address.url, sleep
        self._http = httpx.Client(**address.client_options(), transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Raised) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _do(self, step: Call | float) -> Outcome | None:
        """Wait so many seconds, or send a request."""
        if not isinstance(step, Call):
            return self._sleep(step)
        try:
            return self._http.request(**step.request)
        except httpx.RequestError as error:
            return error

    def _run(self, flow: Flow[Answer]) -> Answer:
        outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the value of a flow
            outcome = self._do(step)

    def _iterate(self, flow: Flows[Answer]) -> Iterator[Answer | StudyEvent]:
        outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration:
                return
            outcome = None
            if isinstance(step, list):
                yield from step
            elif isinstance(step, EventPlace):
                yield from self._stream(step)
            else:
                outcome = self._do(step)

    def _stream(self, place: EventPlace) -> Iterator[StudyEvent]:
        try:
            with self._http.stream(**place.request) as reply:
                if not reply.is_success:
                    reply.read()
                    place.lost_by = reply
                    return
                for line in reply.iter_lines():
                    if (event := place.read(line)) is not None:
                        yield event
                        if place.follows and place.ended:
                            return
        except httpx.RequestError as error:
            place.lost_by = error


class AsyncClient(Calls):
    """Asks a `tuner serve` as `tuner.Client` does, whose arguments and errors it has; its methods are awaited."""

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        insecure: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        address = find_address(server, token, insecure=insecure)
        self.server, self._sleep = address.url, sleep
        self._http = httpx.AsyncClient(**address.client_options(), transport=transport)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: Raised) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _do(self, step: Call | float) -> Outcome | None:
        if not isinstance(step, Call):
            await self._sleep(step)
            return None
        try:
            return await self._http.request(**step.request)
        except httpx.RequestError as error:
            return error

    async def _run(self, flow: Flow[Answer]) -> Answer:
        outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the value of a flow
            outcome = await self._do(step)

    async def _iterate(self, flow: Flows[Answer]) -> AsyncIterator[Answer | StudyEvent]:
        outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration:
                return
            outcome = None
            if isinstance(step, list):
                for each in step:
                    yield each
            elif isinstance(step, EventPlace):
                async for event in self._stream(step):
                    yield event
            else:
                outcome = await self._do(step)

    async def _stream(self, place: EventPlace) -> AsyncIterator[StudyEvent]:
        try:
            async with self._http.stream(**place.request) as reply:
                if not reply.is_success:
                    await reply.aread()
                    place.lost_by = reply
                    return
                async for line in reply.aiter_lines():
                    if (event := place.read(line)) is not None:
                        yield event
                        if place.follows and place.ended:
                            return
        except httpx.RequestError as error:
            place.lost_by = error
