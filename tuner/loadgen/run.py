"""Run a plan, an open loop by the clock or a closed loop of users, and measure the generator's own delays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp

from tuner.loadgen.client import RequestSender, record_without_answer
from tuner.loadgen.plan import PlannedRequest, RequestPlan
from tuner.loadgen.progress import PERIOD_S, ProgressWriter
from tuner.workloads.results import RequestRecord, RequestStatus

_WAKE_UP_PERIOD_S = 0.005


class LoopWatch:
    """Wakes up every 5 ms and stores the delay; time stamps of tokens are late by as much."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _WAKE_UP_PERIOD_S
            await asyncio.sleep(_WAKE_UP_PERIOD_S)
            self.lags_s.append(max(0.0, loop.time() - due))


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of the values do not exceed; None if there are no values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


LEAD_S = 0.05
"""Between the end of the preparations and time 0 of the run."""

KEEP_ALIVE_S = 4.0
"""How long an idle connection is reused. vLLM closes it after 5 s; a request must not meet a closing connection."""

Job = tuple[PlannedRequest, bytes]


@dataclass
class PlanResult:
    """The result of a run: one record per planned request, and the generator's own delays in seconds.

    `late_s` is the delay of each request that was sent in an open loop, from the time at which it was due and had a
    place in flight. `lags_s` are the delays of the event loop's wake-ups, `cpu_s` the generator's processor time.
    """

    records: list[RequestRecord]
    late_s: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0


class PlanRun:
    """One run of a plan."""

    def __init__(
        self, plan: RequestPlan, requests: Sequence[PlannedRequest], progress: ProgressWriter | None = None
    ) -> None:
        self._plan, self._progress = plan, progress
        self._jobs: list[Job] = [(request, plan.body(request)) for request in requests]
        self._records: dict[int, RequestRecord] = {}
        self._unwritten: list[RequestRecord] = []
        self._late_s: list[float] = []
        self._zero = 0.0
        self._freed = 0.0
        self._blocked_until = 0.0
        """When the last wait for a place in flight ended; no later request could have been sent before."""

    async def run(self) -> PlanResult:
        """Send all requests; return when the last answer is complete or the plan's limit has passed."""
        loop = asyncio.get_running_loop()
        watch = LoopWatch()
        connector = (
            aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            if self._plan.reuse_connections
            else aiohttp.TCPConnector(limit=0, force_close=True)
        )
        before = _cpu_s()
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**20
        ) as session:
            self._zero = loop.time() + LEAD_S
            sender = RequestSender(session, self._plan.url, self._elapsed, self._store)
            watching = [asyncio.create_task(each) for each in (watch.run(), self._write_progress(sender))]
            send = self._closed if self._plan.users is not None else self._open
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._zero + self._plan.limit_s):
                    await send(sender)
            wall = self._elapsed()
            for task in watching:
                task.cancel()
        records = [self._records.get(request.index) or _not_sent(request) for request, _ in self._jobs]
        return PlanResult(records, self._late_s, watch.lags_s, _cpu_s() - before, wall)

    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self._zero

    def _store(self, record: RequestRecord) -> None:
        self._records[record.index] = record
        self._unwritten.append(record)

    async def _write_progress(self, sender: RequestSender) -> None:
        """Write the progress once a second until cancelled, if somebody reads it."""
        while self._progress is not None:
            await asyncio.sleep(PERIOD_S)
            ended, self._unwritten = self._unwritten, []
            self._progress.add(self._elapsed(), ended, sender.in_flight())

    async def _open(self, sender: RequestSender) -> None:
        """Send each request when it is due and has a place in flight, in the order of their times."""
        places = asyncio.Semaphore(self._plan.max_in_flight or len(self._jobs))
        async with asyncio.TaskGroup() as running:
            for request, body in self._jobs:
                assert request.at_s is not None  # an open loop's plan has times
                while (wait := request.at_s - self._elapsed()) > 0:
                    await asyncio.sleep(wait)
                give_up = request.at_s + self._plan.timeout_s
                if not await self._place(places, give_up):
                    self._store(
                        record_without_answer(
                            request, RequestStatus.TIMED_OUT, "no place in flight became free in time"
                        )
                    )
                    continue
                free = max(request.at_s, self._blocked_until)
                running.create_task(self._in_flight(sender, request, body, give_up, free, places))

    async def _place(self, places: asyncio.Semaphore, give_up: float) -> bool:
        """Take a place in flight; return False if none becomes free in time."""
        if not places.locked():
            await places.acquire()
        else:
            try:
                async with asyncio.timeout(max(0.0, give_up - self._elapsed())):
                    await places.acquire()
            except TimeoutError:
                self._blocked_until = self._elapsed()
                return False
            self._blocked_until = self._freed
        if self._blocked_until < give_up:
            return True
        places.release()
        return False

    async def _in_flight(
        self,
        sender: RequestSender,
        request: PlannedRequest,
        body: bytes,
        give_up: float,
        free: float,
        places: asyncio.Semaphore,
    ) -> None:
        self._late_s.append(self._elapsed() - free)
        try:
            await sender.send(request, body, give_up)
        finally:
            self._freed = self._elapsed()
            places.release()

    async def _closed(self, sender: RequestSender) -> None:
        """Let each user send the next request as soon as its last answer is complete."""
        jobs = iter(self._jobs)
        async with asyncio.TaskGroup() as users:
            for _ in range(min(self._plan.users or 1, len(self._jobs))):
                users.create_task(self._user(sender, jobs))

    async def _user(self, sender: RequestSender, jobs: Iterator[Job]) -> None:
        while (wait := -self._elapsed()) > 0:
            await asyncio.sleep(wait)
        for request, body in jobs:
            await sender.send(request, body, self._elapsed() + self._plan.timeout_s)


def _not_sent(request: PlannedRequest) -> RequestRecord:
    return record_without_answer(request, RequestStatus.NOT_SENT, "the run ended before it was sent")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_plan(
    plan: RequestPlan, requests: Sequence[PlannedRequest], progress: ProgressWriter | None = None
) -> PlanResult:
    """Run a plan in this process, and write its progress if somebody reads it."""
    load = PlanRun(plan, requests, progress)
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection would delay every time stamp by its duration
    try:
        return asyncio.run(load.run())
    finally:
        gc.enable()
        gc.unfreeze()
