"""Do studies that run at once make as many trials an hour as in turn, and how soon do their events arrive?

    python -m benchmarks.service.studies --studies 20 --trials 20
    python -m benchmarks.service.studies --studies 20 --trials 20 --at-once 20 4 1 --streams 100

Starts a `tuner serve` with so many simulated devices, submits the studies, and waits until the last has ended. A
simulated trial costs no time, so the time is that of the tuner itself: the start of drivers, samplers, the database,
MLflow. More studies than processors share these. The time counts from the first submission.

`--streams` clients follow the studies in turn. An event has the time at which it was written, so each stream measures
how late it came. The service looks for new events once in 0.25 s. Server, drivers and clients share the processors.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

import tuner
from benchmarks.command_line import documented_parser, exit_on_sigterm, write_json
from benchmarks.text_table import MISSING, print_table

STREAMS_OF_AN_OWNER = 20
"""The service refuses more."""


@dataclass(frozen=True)
class Run:
    """One run of all studies.

    Attributes:
        at_once: devices, so studies at once.
        seconds: from the first submission to the last end.
        trials: finished ones, with those of the finals.
        failed: studies that are not DONE.
        load: load average before the run.
        server_mib: largest resident memory of the server in MiB.
        server_s: processor time of the server in s.
        late_s: seconds from the write of each event to its arrival in each stream.
    """

    at_once: int
    seconds: float
    trials: int
    failed: int
    load: float
    server_mib: float
    server_s: float
    late_s: list[float] = field(default_factory=list)

    @property
    def hourly(self) -> float:
        """Trials an hour."""
        return 3600 * self.trials / self.seconds


class Memory:
    """The largest resident memory of a process, sampled in a thread."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            self.most = max(self.most, self._process.memory_info().rss)


@contextmanager
def service(folder: Path, *options: str) -> Iterator[tuple[int, str, str]]:
    """Run `tuner serve`; yield its process id, address and first token."""
    command = [sys.executable, "-m", "tuner", "serve", "--port", "0", "--storage", str(folder / "tuner.db")]
    command += ["--folder", str(folder / "s"), *options]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while (found := re.search(r"serves (\S+);.*?(tnr_\w+)", text, re.DOTALL)) is None:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"the server did not start: {text}")
            text += line
        yield process.pid, found[1], found[2]
    finally:
        process.terminate()
        process.wait()


async def _follow(address: str, token: str, study: str, late_s: list[float]) -> None:
    """Follow a study to its end, and add how late each new event came."""
    async with tuner.AsyncClient(address, token) as client:
        began = datetime.now(UTC)
        async for event in client.events(study):
            if event.at > began:
                late_s.append((datetime.now(UTC) - event.at).total_seconds())


async def _follow_all(address: str, tokens: Sequence[str], studies: Sequence[str], streams: int) -> list[float]:
    late_s: list[float] = []
    plan = [(tokens[index // STREAMS_OF_AN_OWNER], studies[index % len(studies)]) for index in range(streams)]
    await asyncio.gather(*(_follow(address, *each, late_s) for each in plan))
    return late_s


def run(at_once: int, studies: int, settings: dict[str, Any], streams: int) -> Run:
    """Run the studies on so many devices."""
    load = os.getloadavg()[0]
    with (
        TemporaryDirectory() as folder,
        service(Path(folder), "--simulated", str(at_once)) as (pid, address, token),
        Memory(pid) as memory,
        tuner.Client(address, token) as client,
    ):
        owners = [f"owner{number}" for number in range(-(-streams // STREAMS_OF_AN_OWNER))]
        tokens = [client.add_token(name).token or "" for name in owners]
        began, names = time.monotonic(), [f"s{index}" for index in range(studies)]
        for seed, name in enumerate(names):
            client.submit(id=name, engine="simulated", seed=seed, shared=True, **settings)
        late_s = asyncio.run(_follow_all(address, tokens, names, streams))
        found = [client.wait(name) for name in names]
        seconds = time.monotonic() - began
        used = sum(psutil.Process(pid).cpu_times()[:2])
    failed = [each for each in found if each.state != "DONE"]
    for each in failed:
        print(f"{each.id} is {each.state}: {each.reason}", file=sys.stderr)
    trials = sum(each.progress.trials + each.progress.rounds for each in found if each.progress)
    return Run(at_once, seconds, trials, len(failed), load, memory.most / 2**20, used, late_s)


def _row(each: Run, alone: float) -> list[str]:
    late = [f"{1000 * value:.0f}" for value in np.percentile(each.late_s, [50, 99])] if each.late_s else [MISSING] * 2
    return [
        *(str(each.at_once), f"{each.seconds:.0f}", str(each.trials), str(each.failed), f"{each.hourly:,.0f}"),
        *(f"{each.hourly / alone:.2f}", f"{each.server_mib:.0f}", f"{each.server_s:.0f}", f"{each.load:.1f}"),
        *(str(len(each.late_s)), *late),
    ]


def main() -> None:
    """Run the studies with each number at once, and print the rates."""
    parser = documented_parser(__doc__)
    add = parser.add_argument
    add("--studies", type=int, default=20, help="studies of each run [20]")
    add("--trials", type=int, default=20, help="trials of each study [20]")
    add("--sampler", default="auto", help="of the studies [auto]")
    add("--at-once", type=int, nargs="+", default=[20, 1], metavar="COUNT", help="studies at once [20 1]")
    add("--streams", type=int, default=0, metavar="COUNT", help="clients that follow the studies [0]")
    add("--json", type=Path, metavar="FILE", help="write the figures")
    given: argparse.Namespace = parser.parse_args()
    exit_on_sigterm()
    settings = {"trials": given.trials, "sampler": given.sampler}
    runs = [run(at_once, given.studies, settings, given.streams) for at_once in given.at_once]
    caption = (
        f"{given.studies} simulated studies of {given.trials} trials, sampler {given.sampler}, on {os.cpu_count()} "
        f"processors; against: trials an hour divided by those of the last row; the server's largest memory in MiB and "
        f"its processor time in s; load average before the run; events that came in {given.streams} streams, and "
        f"median and p99 of how late, in ms."
    )
    header = ["at once", "seconds", "trials", "not done", "trials/h", "against", "MiB", "CPU", "load", "events"]
    print_table(caption, [*header, "p50", "p99"], [_row(each, runs[-1].hourly) for each in runs])
    write_json(given.json, [asdict(each) | {"provenance": "measured"} for each in runs])


if __name__ == "__main__":
    main()
