"""How soon an event reaches the clients that follow its study, with many open streams.

    python -m benchmarks.service.streams --streams 100 --studies 20
    python -m benchmarks.service.streams --streams 100 --studies 1 --rate 5 --database postgresql

Starts a `tuner serve` that does not schedule, opens the streams, and writes events to the database at a fixed rate, as
drivers do. An event has the time at which it was written, so each stream measures how late it came. The reader of the
service looks for new events once in `POLL_S` (0.25 s), so that is the most that is meant. Writer, server and clients
share the processors; the table has the load average before the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import psutil

from benchmarks.command_line import documented_parser, exit_on_sigterm, write_json
from benchmarks.service.server import Memory, service
from benchmarks.text_table import print_table
from storage.service.records import Role, Submission, Token
from storage.service.store import ServiceStore, open_service_store
from tests.postgres import postgres_server, require_postgresql
from tuner.service.http.access import new_token
from tuner.service.http.edge.streams import MOST_STREAMS

OPEN_S = 120.0
"""How long the streams may take to open."""
KIND = "timed"


class Streams:
    """Clients that follow studies, and how late each event came to each of them, in seconds."""

    def __init__(self, address: str) -> None:
        self.late: list[float] = []
        self.numbers: dict[int, list[int]] = {}
        self._address = address

    async def follow(self, stream: int, study: str, secret: str, http: httpx.AsyncClient) -> None:
        """Follow a study until cancelled."""
        self.numbers[stream] = []
        url, headers = f"{self._address}/v1/studies/{study}/events", {"Authorization": f"Bearer {secret}"}
        async with http.stream("GET", url, headers=headers) as response:
            response.raise_for_status()
            kind = ""
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    self.numbers[stream].append(int(value))
                elif name == "event":
                    kind = value
                elif name == "data" and kind == KIND:
                    self.late.append(time.monotonic() - json.loads(value)["written"])

    async def run(self, plan: Sequence[tuple[str, str]], ready: threading.Event, done: threading.Event) -> None:
        """Open a stream for each study and secret; say when all have their first event; end when told."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60, limits=limits) as http:
            tasks = [asyncio.create_task(self.follow(i, *each, http)) for i, each in enumerate(plan)]
            while not done.is_set():
                for task in tasks:
                    if task.done():
                        task.result()
                if len(self.numbers) == len(plan) and all(self.numbers.values()):
                    ready.set()
                await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def fill(store: ServiceStore, studies: int, streams: int) -> list[tuple[str, str]]:
    """Store submissions and tokens; return a study and a secret for each stream."""
    owners = -(-streams // MOST_STREAMS)
    now = datetime.now(UTC)
    secrets = []
    for owner in range(owners):
        secret, digest = new_token()
        store.add_token(Token(f"owner{owner}", f"owner{owner}", Role.USER, digest, now))
        secrets.append(secret)
    for study in range(studies):
        store.submit(Submission(f"s{study}", "owner0", {"trials": 4}, "simulated", 1, 0, now, now, shared=True))
    return [(f"s{index % studies}", secrets[index % owners]) for index in range(streams)]


def write_events(store: ServiceStore, studies: int, rate: float, seconds: float) -> int:
    """Write events at a rate, to one study after the other; return how many."""
    began, count = time.monotonic(), 0
    while (now := time.monotonic()) - began < seconds:
        due = began + count / rate
        if now < due:
            time.sleep(due - now)
        at = datetime.now(UTC)
        store.event(f"s{count % studies}", KIND, {"written": time.monotonic(), "text": "x" * 300}, at)
        count += 1
    return count


@contextmanager
def _following(streams: Streams, plan: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Follow in a thread until the block ends; the block begins when all streams are open."""
    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(streams.run(plan, ready, done)))
    thread.start()
    try:
        if not ready.wait(OPEN_S):
            raise SystemExit(f"{sum(map(bool, streams.numbers.values()))} of {len(plan)} streams opened")
        yield
    finally:
        done.set()
        thread.join()


def measure(url: str, folder: Path, given: argparse.Namespace) -> dict[str, float | list[float]]:
    """Run the server, the streams and the writer; return seconds, counts and the server's memory."""
    with closing(open_service_store(url)) as store:
        plan = fill(store, given.studies, given.streams)
        with service(folder, url, "--no-scheduler", first=False) as (pid, address, _), Memory(pid) as memory:
            streams, process = Streams(address), psutil.Process(pid)
            with _following(streams, plan):
                before = sum(process.cpu_times()[:2])
                written = write_events(store, given.studies, given.rate, given.seconds)
                time.sleep(2.0)
                used = sum(process.cpu_times()[:2]) - before
        gaps = [each for each in streams.numbers.values() if each != list(range(1, len(each) + 1))]
        expected = sum(len(range(int(study[1:]), written, given.studies)) for study, _ in plan)
    return {
        "late": streams.late,
        "written": written,
        "missing": expected - len(streams.late),
        "gaps": len(gaps),
        "memory_mib": memory.most / 2**20,
        "cpu_share": used / (given.seconds + 2.0),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the delays."""
    parser = documented_parser(__doc__)
    add = parser.add_argument
    add("--streams", type=int, default=100, help="open streams [100]")
    add("--studies", type=int, default=20, help="studies over which they are spread [20]")
    add("--rate", type=float, default=20.0, help="events a second in all [20]")
    add("--seconds", type=float, default=30.0, help="measured time [30]")
    add("--database", choices=("sqlite", "postgresql"), default="sqlite", help="of the service")
    add("--json", type=Path, metavar="FILE", help="write the delay of each event in each stream")
    given = parser.parse_args(arguments)
    exit_on_sigterm()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        url = f"sqlite:///{folder}/tuner.db"
        if given.database == "postgresql":
            require_postgresql()
            url = stack.enter_context(postgres_server(durable=True)).new_database()
        load = os.getloadavg()[0]
        found = measure(url, folder, given)
    late = found["late"]
    assert isinstance(late, list)
    caption = (
        f"Time in ms from the write of an event to its arrival in each of {given.streams} streams on {given.studies} "
        f"studies; {given.rate:g} events a second for {given.seconds:g} s; {given.database}; missing: events that did "
        f"not come; the server's largest memory in MiB and share of a core; load average before: {load:.1f}."
    )
    shown = [f"{1000 * value:.0f}" for value in (*np.percentile(late, [50, 99]), max(late))]
    numbers = [f"{found[name]:.0f}" for name in ("missing", "gaps", "memory_mib")]
    header = ["arrivals", "p50", "p99", "worst", "missing", "gaps", "MiB", "cores"]
    print_table(caption, header, [[str(len(late)), *shown, *numbers, f"{found['cpu_share']:.2f}"]])
    write_json(given.json, {**found, "load": load, "provenance": "measured"})


if __name__ == "__main__":
    main()
