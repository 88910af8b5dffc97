"""The client of the service for asynchronous programs: `tuner.AsyncClient`."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from tuner.client import calls
from tuner.client.address import find_address
from tuner.client.calls import Call
from tuner.client.client import POLL_S
from tuner.client.failures import (
    PATIENT_WAITS_S,
    WAITS_S,
    RefusedError,
    wait_before_reconnecting,
    wait_before_repeating,
)
from tuner.client.output import write_export, write_report
from tuner.client.replies import LogPart, ServiceToken, StudyEvent, SubmittedStudy, SubmittedTrial
from tuner.client.streams import PAUSE_S, SILENCE_S, EventPlace
from tuner.settings.keywords import method_takes
from tuner.settings.study import SubmitSettings

Answer = TypeVar("Answer")


class AsyncClient:
    """Asks a `tuner serve` as `tuner.Client` does, whose methods describe those of this one."""

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
        self.server = address.url
        self._sleep = sleep
        self._http = httpx.AsyncClient(
            base_url=address.url,
            headers={"Authorization": f"Bearer {address.token}"},
            trust_env=not address.is_loopback,
            verify=address.authorities(),
            transport=transport,
        )

    def __repr__(self) -> str:
        return f"AsyncClient({self.server!r})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Client.close`."""
        await self._http.aclose()

    @method_takes(SubmitSettings)
    async def submit(self, **given: Any) -> SubmittedStudy:
        """As `Client.submit`."""
        return await self._ask(calls.submit(given))

    async def study(self, id: str) -> SubmittedStudy:
        """As `Client.study`."""
        return await self._ask(calls.study(id))

    async def studies(
        self, *, owner: str | None = None, states: Sequence[str] = (), text: str | None = None
    ) -> AsyncIterator[SubmittedStudy]:
        """As `Client.studies`."""
        after: str | None = None
        while True:
            query = {"owner": owner, "state": [*states], "text": text, "after": after, "limit": 200}
            found, after = await self._ask(calls.page(query))
            for each in found:
                yield each
            if after is None:
                return

    async def trials(self, id: str, after: int = -1) -> list[SubmittedTrial]:
        """As `Client.trials`."""
        found: list[SubmittedTrial] = []
        while page := await self._ask(calls.trials(id, found[-1].number if found else after)):
            found += page
        return found

    async def conclusion(self, id: str) -> dict[str, Any] | None:
        """As `Client.conclusion`."""
        try:
            return await self._ask(calls.document(id, "/conclusion"))
        except RefusedError as error:
            if error.status != 404:
                raise
        await self.study(id)  # an unknown study is an error
        return None

    async def events(self, id: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[StudyEvent]:
        """As `Client.events`."""
        place = EventPlace(after)
        waits: tuple[float, ...] = WAITS_S
        while True:
            place.state = (await self._ask(calls.study(id), waits)).state
            waits = PATIENT_WAITS_S
            async for event in self._stream(id, place, follow=False):
                yield event
            if not place.complete:
                continue
            if not follow or place.ended:
                return
            number = place.number
            async for event in self._stream(id, place, follow=True):
                yield event
            if place.complete and place.number == number:
                await self._sleep(PAUSE_S)

    async def _stream(self, id: str, place: EventPlace, *, follow: bool) -> AsyncIterator[StudyEvent]:
        """Yield the events of one connection; one that is lost is counted, and the next one waits."""
        address = calls.path_of(id, "/events")
        headers, query = {"Last-Event-ID": str(place.number)}, {"follow": str(follow).lower()}
        place.connected()
        try:
            async with self._http.stream("GET", address, params=query, headers=headers, timeout=SILENCE_S) as reply:
                if not reply.is_success:
                    await reply.aread()
                    await self._sleep(wait_before_reconnecting(place, reply, self.server))
                    return
                async for line in reply.aiter_lines():
                    event = place.read(line)
                    if event is not None:
                        yield event
                        if follow and place.ended:
                            return
            place.complete = True
        except httpx.RequestError as error:
            await self._sleep(wait_before_reconnecting(place, error, self.server))

    async def wait(self, id: str, timeout_s: float | None = None) -> SubmittedStudy:
        """As `Client.wait`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        waits: tuple[float, ...] = WAITS_S
        while True:
            found = await self._ask(calls.study(id), waits)
            waits = PATIENT_WAITS_S
            if found.ended:
                return found
            left = POLL_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the study {id!r} is {found.state.value} after {timeout_s:g} s")
            await self._sleep(min(POLL_S, left))

    async def stop(self, id: str) -> SubmittedStudy:
        """As `Client.stop`."""
        return await self._ask(calls.verb(id, "stop"))

    async def cancel(self, id: str) -> SubmittedStudy:
        """As `Client.cancel`."""
        return await self._ask(calls.verb(id, "cancel"))

    async def resume(self, id: str) -> SubmittedStudy:
        """As `Client.resume`."""
        return await self._ask(calls.verb(id, "resume"))

    async def delete(self, id: str) -> None:
        """As `Client.delete`."""
        await self._ask(calls.delete(id))

    async def report(self, id: str, path: str | Path, *others: str) -> Path:
        """As `Client.report`."""
        return write_report(await self._ask(calls.report(id, others)), Path(path), ", ".join((id, *others)))

    async def export(self, id: str, path: str | Path, format: str = "script", trial: int | None = None) -> Path:
        """As `Client.export`."""
        target = Path(path)
        return write_export(await self._ask(calls.export(id, target.name, format, trial)), target, format, id)

    async def records(self, id: str) -> list[dict[str, Any]]:
        """As `Client.records`."""
        return await self._ask(calls.records(id))

    async def log(self, id: str, offset: int = 0) -> LogPart:
        """As `Client.log`."""
        return await self._ask(calls.log(id, offset))

    async def chart(self, id: str, name: str) -> dict[str, Any]:
        """As `Client.chart`."""
        return await self._ask(calls.chart(id, name))

    async def queue(self) -> dict[str, Any]:
        """As `Client.queue`."""
        return await self._ask(calls.queue())

    async def tokens(self) -> list[ServiceToken]:
        """As `Client.tokens`."""
        return await self._ask(calls.tokens())

    async def add_token(
        self, name: str, *, owner: str | None = None, role: str = "user", days: int | None = None
    ) -> ServiceToken:
        """As `Client.add_token`."""
        return await self._ask(calls.add_token({"name": name, "owner": owner or name, "role": role, "days": days}))

    async def revoke_token(self, name: str) -> ServiceToken:
        """As `Client.revoke_token`."""
        return await self._ask(calls.revoke_token(name))

    async def _ask(self, call: Call[Answer], waits: tuple[float, ...] = WAITS_S) -> Answer:
        """Send a request until it is answered, and return what the answer says."""
        query = {name: value for name, value in call.query.items() if value is not None}
        outcome: httpx.Response | httpx.RequestError
        for attempt in itertools.count():
            try:
                outcome = await self._http.request(
                    call.method, call.path, params=query, json=call.body, timeout=call.timeout_s
                )
            except httpx.RequestError as error:
                outcome = error
            if attempt and call.done_by is not None and calls.is_status(outcome, call.done_by[0]):
                return await self._ask(call.done_by[1], waits)
            wait = wait_before_repeating(call, outcome, attempt, self.server, waits)
            if wait is None and isinstance(outcome, httpx.Response):
                return call.read(outcome)
            await self._sleep(wait or 0.0)
        raise AssertionError  # `count` does not end
