"""Whether studies that run at once make as many trials an hour as the same studies one after the other.

    python -m benchmarks.service.studies --studies 20 --trials 20
    python -m benchmarks.service.studies --studies 20 --trials 20 --at-once 20 4 1

Starts a `tuner serve` with so many simulated devices, submits the studies, and waits until the last has ended. A
simulated trial costs no time, so the time is that of the tuner itself: the start of drivers, samplers, the database,
MLflow. More studies than processors share these. The time counts from the first submission.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil

from benchmarks.command_line import documented_parser, exit_on_sigterm, write_json
from benchmarks.service.server import Memory, service
from benchmarks.text_table import print_table

ENDED = ("DONE", "STOPPED", "CANCELLED", "FAILED")


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
    """

    at_once: int
    seconds: float
    trials: int
    failed: int
    load: float
    server_mib: float
    server_s: float

    @property
    def hourly(self) -> float:
        """Trials an hour."""
        return 3600 * self.trials / self.seconds


def run(at_once: int, studies: int, settings: dict[str, Any]) -> Run:
    """Run the studies on so many devices."""
    with TemporaryDirectory() as name:
        folder, load = Path(name), os.getloadavg()[0]
        url = str(folder / "tuner.db")
        with service(folder, url, "--simulated", str(at_once)) as (pid, address, token), Memory(pid) as memory:
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=address, headers=headers, timeout=120) as http:
                began = time.monotonic()
                for index in range(studies):
                    body = {"id": f"s{index}", "settings": settings | {"engine": "simulated", "seed": index}}
                    http.post("/v1/studies", json=body).raise_for_status()
                found = _wait(http)
                seconds = time.monotonic() - began
            used = sum(psutil.Process(pid).cpu_times()[:2])
        trials = sum(each["progress"]["trials"] + each["progress"]["rounds"] for each in found if each["progress"])
        ended = [each for each in found if each["state"] != "DONE"]
        for each in ended:
            print(f"{each['id']} is {each['state']}: {each['reason']}", file=sys.stderr)
        failed = len(ended)
        return Run(at_once, seconds, trials, failed, load, memory.most / 2**20, used)


def _wait(http: httpx.Client) -> list[dict[str, Any]]:
    """Return the studies when all have ended."""
    while True:
        answer = http.get("/v1/studies?limit=200")
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()["studies"]
        if all(each["state"] in ENDED for each in found):
            return found
        time.sleep(0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the studies with each number at once, and print the rates."""
    parser = documented_parser(__doc__)
    add = parser.add_argument
    add("--studies", type=int, default=20, help="studies of each run [20]")
    add("--trials", type=int, default=20, help="trials of each study [20]")
    add("--sampler", default="auto", help="of the studies [auto]")
    add("--at-once", type=int, nargs="+", default=[20, 1], metavar="COUNT", help="studies at once [20 1]")
    add("--json", type=Path, metavar="FILE", help="write the figures")
    given: argparse.Namespace = parser.parse_args(arguments)
    exit_on_sigterm()
    settings = {"trials": given.trials, "sampler": given.sampler}
    runs = [run(at_once, given.studies, settings) for at_once in given.at_once]
    alone = runs[-1].hourly
    caption = (
        f"{given.studies} simulated studies of {given.trials} trials, sampler {given.sampler}, on {os.cpu_count()} "
        f"processors; against: trials an hour divided by those of the last row; the server's largest memory in MiB and "
        f"its processor time in s; load average before the run."
    )
    rows = [
        [
            *(str(each.at_once), f"{each.seconds:.0f}", str(each.trials), str(each.failed), f"{each.hourly:,.0f}"),
            *(f"{each.hourly / alone:.2f}", f"{each.server_mib:.0f}", f"{each.server_s:.0f}", f"{each.load:.1f}"),
        ]
        for each in runs
    ]
    header = ["at once", "seconds", "trials", "not done", "trials/h", "against", "MiB", "CPU", "load"]
    print_table(caption, header, rows)
    write_json(given.json, [asdict(each) | {"provenance": "measured"} for each in runs])


if __name__ == "__main__":
    main()
