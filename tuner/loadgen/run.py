"""Run a plan, an open loop by the clock or a closed loop of users, and measure the generator's own delays.

What arrives, and what a user takes next, is a session. A request that stands alone is a session of one turn. The next
turn waits for all answers of the turn before it, and its pause. A turn that does not complete ends its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import math
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from tuner.loadgen.client import Piece, RequestSender, read_content, record_without_answer
from tuner.loadgen.plan import PlannedRequest, Prompt, RequestPlan, Turn, whole_prompt
from tuner.loadgen.progress import PERIOD_S, ProgressWriter
from tuner.workloads.results import SESSION_ENDED, RequestRecord, RequestStatus
from tuner.workloads.sessions import sessions_of

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

Answer = tuple[RequestRecord, Sequence[Piece]]
"""The record of a request, and the pieces of its answer."""


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
        self._requests = requests
        self._sessions = sessions_of(requests)
        self._bodies = {each.index: plan.body(each) for turns in self._sessions for each in turns[0]}
        self._records: dict[int, RequestRecord] = {}
        self._unwritten: list[RequestRecord] = []
        self._late_s: list[float] = []
        self._zero = 0.0
        self._freed = 0.0
        """When the last place in flight became free."""
        self._places = asyncio.Semaphore(plan.max_in_flight or len(requests))

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
        records = [self._records.get(request.index) or _not_sent(request) for request in self._requests]
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
        """Begin each session when it is due."""
        async with asyncio.TaskGroup() as running:
            for turns in self._sessions:
                due = turns[0][0].at_s
                assert due is not None  # an open loop's plan has times
                await self._until(due)
                running.create_task(self._session(sender, turns))

    async def _closed(self, sender: RequestSender) -> None:
        """Let each user begin the next session as soon as the last one has ended."""
        sessions = iter(self._sessions)
        async with asyncio.TaskGroup() as users:
            for _ in range(min(self._plan.users or 1, len(self._sessions))):
                users.create_task(self._user(sender, sessions))

    async def _user(self, sender: RequestSender, sessions: Iterator[list[Turn]]) -> None:
        await self._until(0.0)
        for turns in sessions:
            await self._session(sender, turns)

    async def _until(self, at_s: float) -> None:
        while (wait := at_s - self._elapsed()) > 0:
            await asyncio.sleep(wait)

    async def _session(self, sender: RequestSender, turns: Sequence[Turn]) -> None:
        """Send the turns of a session one after another."""
        before: Prompt | None = None
        answers = await self._turn(sender, turns[0], [self._bodies[each.index] for each in turns[0]])
        for place, (last, turn) in enumerate(itertools.pairwise(turns)):
            completed = all(record.completed for record, _ in answers)
            before = _continued(whole_prompt(last[0], before), answers[0][1]) if completed else None
            if before is None:
                reason = NO_TOKEN_IDS if completed else SESSION_ENDED
                for each in itertools.chain.from_iterable(turns[place + 1 :]):
                    self._store(record_without_answer(each, RequestStatus.NOT_SENT, reason))
                return
            bodies = [self._plan.body(each, before) for each in turn]
            due = max(record.end_s or 0.0 for record, _ in answers) + turn[0].pause_s
            await self._until(due)
            if self._plan.users is None:
                turn = [replace(each, at_s=due) for each in turn]
            answers = await self._turn(sender, turn, bodies)

    async def _turn(self, sender: RequestSender, requests: Turn, bodies: Sequence[bytes]) -> list[Answer]:
        """Send the requests of a turn at once; return the answers in their order."""
        if len(requests) == 1:  # without a task of its own
            return [await self._request(sender, requests[0], bodies[0])]
        async with asyncio.TaskGroup() as running:
            tasks = [
                running.create_task(self._request(sender, each, body))
                for each, body in zip(requests, bodies, strict=True)
            ]
        return [task.result() for task in tasks]

    async def _request(self, sender: RequestSender, request: PlannedRequest, body: bytes) -> Answer:
        """Send a request, in an open loop as soon as it has a place in flight."""
        if request.at_s is None:
            return await sender.send(request, body, self._elapsed() + self._plan.timeout_s)
        give_up = request.at_s + self._plan.timeout_s
        free = await self._place(request.at_s, give_up)
        if free is None:
            reason = "no place in flight became free in time"
            record = record_without_answer(request, RequestStatus.TIMED_OUT, reason)
            self._store(record)
            return record, ()
        self._late_s.append(self._elapsed() - free)
        try:
            return await sender.send(request, body, give_up)
        finally:
            self._freed = self._elapsed()
            self._places.release()

    async def _place(self, due: float, give_up: float) -> float | None:
        """Take a place in flight; return since when there has been one, None if none becomes free in time."""
        free = due
        if self._places.locked():
            try:
                async with asyncio.timeout(max(0.0, give_up - self._elapsed())):
                    await self._places.acquire()
            except TimeoutError:
                return None
            free = max(due, self._freed)
        else:
            await self._places.acquire()
        if free < give_up:
            return free
        self._places.release()
        return None


NO_TOKEN_IDS = "the server sent no token ids of the answer, with which the session goes on"


def _continued(prompt: Prompt, answer: Sequence[Piece]) -> Prompt | None:
    """Return a prompt with its answer; None if the answer to a prompt of tokens lacks token ids."""
    text, tokens = read_content(answer)
    if isinstance(prompt, str):
        return prompt + text
    return prompt + tokens if tokens else None


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
    frozen = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection would delay every time stamp by its duration
    try:
        return asyncio.run(load.run())
    finally:
        gc.enable()
        if not frozen:  # what the caller has frozen stays so
            gc.unfreeze()
