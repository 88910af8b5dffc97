"""Operations of clients, collected into transactions: what arrives while one transaction runs is in the next one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from storage.errors import StorageError, StorageUnavailable
from storage.service.optimizations.records import Operation, Result
from storage.service.records import Token
from storage.service.store import ServiceStore
from storage.waiting import may_pass
from tuner.service.optimizer.draws import Draws

MOST_OPERATIONS = 200
"""Operations of one transaction."""

Clock: TypeAlias = Callable[[], datetime]
Maker: TypeAlias = Callable[[Token | None, datetime], Operation | Exception]
"""Returns a caller's operation for their token and the present time, or why they may not ask for it."""


@dataclass(frozen=True)
class _Waiting:
    """An operation, whose making needs the token of its caller, and where its result goes."""

    digest: str
    make: Maker
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Result]


class Batches:
    """Runs operations in a thread."""

    def __init__(
        self,
        service: ServiceStore,
        draws: Draws,
        used: Callable[[Token, datetime], None] = lambda *_: None,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare the thread.

        Args:
            service: the store.
            draws: the settings of optimizations, which only the thread changes.
            used: called in the thread for each token of a transaction's callers.
            clock: returns the time.
        """
        self._service = service
        self._used = used
        self._draws = draws
        self._clock = clock
        self._arrived = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Run what waits, and end the thread."""
        with self._arrived:
            self._closed = True
            self._arrived.notify()
        self._thread.join()

    async def result(self, digest: str, make: Maker) -> Result:
        """Return the result of an operation.

        Args:
            digest: of the caller's token.
            make: see `Maker`.

        Raises:
            StorageError: if the operation is refused, or the database fails.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        with self._arrived:
            self._waiting.append(_Waiting(digest, make, loop, future))
            self._arrived.notify()
        return await future

    def _run(self) -> None:
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: self._waiting or self._closed)
                batch, self._waiting = self._waiting[:MOST_OPERATIONS], self._waiting[MOST_OPERATIONS:]
            if not batch:
                return
            try:
                results = self._results(batch)
            except Exception as error:  # noqa: BLE001  (without an answer, its clients would wait for ever)
                results = [error] * len(batch)
            for loop in {each.loop for each in batch}:
                own = [pair for pair in zip(batch, results, strict=True) if pair[0].loop is loop]
                try:
                    loop.call_soon_threadsafe(_set, own)
                except RuntimeError:  # the loop was closed: nobody waits any more
                    continue

    def _results(self, batch: Sequence[_Waiting]) -> list[Result | Exception]:
        """Return the result of each operation, or its error; if the database refuses all together, one by one."""
        self._draws.forget()
        try:
            return self._applied(batch, self._clock())
        except StorageError as error:
            if len(batch) == 1 or may_pass(error):
                return [StorageUnavailable(str(error)) if may_pass(error) else error] * len(batch)
        return [result for each in batch for result in self._results([each])]

    def _applied(self, batch: Sequence[_Waiting], now: datetime) -> list[Result | Exception]:
        """Run operations in one transaction."""
        made: list[Operation | Exception] = []

        def make(tokens: Mapping[str, Token]) -> list[Operation]:
            made[:] = [each.make(tokens.get(each.digest), now) for each in batch]
            used.update(tokens)
            return [each for each in made if not isinstance(each, Exception)]

        used: dict[str, Token] = {}
        results = iter(self._service.apply_for({each.digest for each in batch}, make, self._draws, now))
        for token in used.values():
            self._used(token, now)
        return [each if isinstance(each, Exception) else next(results) for each in made]


def _set(results: Sequence[tuple[_Waiting, Result | Exception]]) -> None:
    for waiting, result in results:
        if waiting.future.cancelled():  # its client has gone
            continue
        if isinstance(result, Exception):
            waiting.future.set_exception(result)
        else:
            waiting.future.set_result(result)
