"""The whole load: an open loop by the clock, or a closed loop of users."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp

from tuner.loadgen.client import Client, blank
from tuner.loadgen.plan import LoadPlan, PlannedRequest
from tuner.loadgen.watch import LoopWatch
from tuner.workloads.requests import RequestRecord, RequestStatus

LEAD_S = 0.05
"""Between the end of the preparations and the load's time 0."""

KEEP_ALIVE_S = 4.0
"""An idle connection is used again for so long: less than the 5 s after which vLLM closes it, so that a request never
meets a connection that is being closed."""

Job = tuple[PlannedRequest, bytes]


@dataclass
class LoadResult:
    """What a load left: a record for each planned request, and how late the generator itself was, in seconds.

    `late_s` is, for each request that was sent in an open loop, the time from when it was due and had a place among
    those in flight until it was sent. `lags_s` are the wake-ups of its event loop. `cpu_s` is its processor time.
    """

    records: list[RequestRecord]
    late_s: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0


class LoadRun:
    """One run of a plan."""

    def __init__(self, plan: LoadPlan, requests: Sequence[PlannedRequest]) -> None:
        self._plan = plan
        self._jobs: list[Job] = [(request, plan.body(request)) for request in requests]
        self._records: dict[int, RequestRecord] = {}
        self._late_s: list[float] = []
        self._zero = 0.0
        self._freed = 0.0
        self._blocked_until = 0.0
        """When the last wait for a place in flight ended: nothing behind it could have been sent before."""

    async def run(self) -> LoadResult:
        """Send everything; return when the last answer is over or the plan's limit has passed."""
        loop = asyncio.get_running_loop()
        watch = LoopWatch()
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        before = _cpu_s()
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**20
        ) as session:
            self._zero = loop.time() + LEAD_S
            client = Client(session, self._plan.url, self._since, self._keep)
            watching = asyncio.create_task(watch.run())
            send = self._closed if self._plan.users is not None else self._open
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._zero + self._plan.limit_s):
                    await send(client)
            wall = self._since()
            watching.cancel()
        records = [self._records.get(request.index) or _not_sent(request) for request, _ in self._jobs]
        return LoadResult(records, self._late_s, watch.lags_s, _cpu_s() - before, wall)

    def _since(self) -> float:
        return asyncio.get_running_loop().time() - self._zero

    def _keep(self, record: RequestRecord) -> None:
        self._records[record.index] = record

    async def _open(self, client: Client) -> None:
        """Send each request when it is due and there is a place for it, first come first served."""
        places = asyncio.Semaphore(self._plan.max_in_flight or len(self._jobs))
        async with asyncio.TaskGroup() as running:
            for request, body in self._jobs:
                assert request.at_s is not None  # an open loop's plan has times
                while (wait := request.at_s - self._since()) > 0:
                    await asyncio.sleep(wait)
                give_up = request.at_s + self._plan.timeout_s
                if not await self._place(places, give_up):
                    self._keep(blank(request, RequestStatus.TIMED_OUT, "no place in flight came free in time"))
                    continue
                free = max(request.at_s, self._blocked_until)
                running.create_task(self._in_flight(client, request, body, give_up, free, places))

    async def _place(self, places: asyncio.Semaphore, give_up: float) -> bool:
        """Take a place in flight; return False if none came free in time."""
        if not places.locked():
            await places.acquire()
        else:
            try:
                async with asyncio.timeout(max(0.0, give_up - self._since())):
                    await places.acquire()
            except TimeoutError:
                self._blocked_until = self._since()
                return False
            self._blocked_until = self._freed
        if self._blocked_until < give_up:
            return True
        places.release()
        return False

    async def _in_flight(
        self,
        client: Client,
        request: PlannedRequest,
        body: bytes,
        give_up: float,
        free: float,
        places: asyncio.Semaphore,
    ) -> None:
        self._late_s.append(self._since() - free)
        try:
            await client.send(request, body, give_up)
        finally:
            self._freed = self._since()
            places.release()

    async def _closed(self, client: Client) -> None:
        """Have each user send the next request as soon as its last is over."""
        jobs = iter(self._jobs)
        async with asyncio.TaskGroup() as users:
            for _ in range(min(self._plan.users or 1, len(self._jobs))):
                users.create_task(self._user(client, jobs))

    async def _user(self, client: Client, jobs: Iterator[Job]) -> None:
        while (wait := -self._since()) > 0:
            await asyncio.sleep(wait)
        for request, body in jobs:
            await client.send(request, body, self._since() + self._plan.timeout_s)


def _not_sent(request: PlannedRequest) -> RequestRecord:
    return blank(request, RequestStatus.NOT_SENT, "the run ended before it was sent")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_load(plan: LoadPlan, requests: Sequence[PlannedRequest]) -> LoadResult:
    """Run a plan in this process."""
    load = LoadRun(plan, requests)
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection would hold up every stamp by as long as it takes
    try:
        return asyncio.run(load.run())
    finally:
        gc.enable()
        gc.unfreeze()
