"""What clients ask of optimizations, with the proposals of models where a sampler has one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakValueDictionary

from storage.service.optimizations.records import Proposal, Result, Suggested
from tuner.service.optimizer.batches import Batches, Maker
from tuner.service.optimizer.draws import Draws
from tuner.service.optimizer.models import Models

THREADS = 2
"""Threads that compute proposals; one optimization uses one of them at a time."""

TRIES = 4
"""Proposals for one request; the last one is taken although another process was faster each time."""


class Clients:
    """Answers clients; used by one event loop."""

    def __init__(self, batches: Batches, draws: Draws, models: Models) -> None:
        self._batches = batches
        self._draws = draws
        self._models = models
        self._pool = ThreadPoolExecutor(THREADS, "models")
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def start(self) -> None:
        """Start the thread of the transactions."""
        self._batches.start()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._batches.close()

    async def result(self, digest: str, make: Maker) -> Result:
        """Return the result of an operation, see `Batches.result`."""
        return await self._batches.result(digest, make)

    async def suggest(self, digest: str, make: Callable[[Proposal | None], Maker]) -> Suggested:
        """Return the trials of a client.

        Args:
            digest: of the caller's token.
            make: returns the maker of a `Suggest` with a proposal.
        """
        found = await self._suggested(digest, make(None))
        if not found.missing:
            return found
        row = found.optimization
        settings = self._draws.settings(row)
        lock = self._locks.setdefault(row, asyncio.Lock())
        loop = asyncio.get_running_loop()
        async with lock:
            for number in range(1, TRIES + 1):
                propose = partial(self._models.propose, row, settings, found.missing, late=number == TRIES)
                proposal = await loop.run_in_executor(self._pool, propose)
                found = await self._suggested(digest, make(proposal))
                if not found.missing:
                    break
        return found

    async def _suggested(self, digest: str, make: Maker) -> Suggested:
        found = await self._batches.result(digest, make)
        assert isinstance(found, Suggested)
        return found
