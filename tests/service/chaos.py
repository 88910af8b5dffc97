"""Random faults while a service runs studies; exits with 1 on a problem.

python -m tests.service.chaos --faults 50 --seed 1 [--postgres] [--json]

Two processes serve one database, and one of them schedules. Simulated studies are submitted all the time, some are
stopped and resumed. Each fault is one of: kill a process of the service, kill or freeze a driver, restart PostgreSQL.
At the end every study must have its trials, each once, and its events without a gap, also for a client that followed
them and connected again after each fault; no driver may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.postgres import PostgresServer, postgres_server, require_programs
from tests.service.running import DEADLINE_S, ENDED, Service, drivers, start_service, wait_for

TRIALS = 25
MOST_OPEN = 6
"""Studies that are not at their end at the same time."""


@dataclass
class Figures:
    """What a run of faults found."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    studies: int = 0
    trials: int = 0
    recovery_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Follower(threading.Thread):
    """A client that follows one study's events and connects again with the last number that it has."""

    def __init__(self, chaos: Chaos, id: str) -> None:
        super().__init__(daemon=True)
        self._chaos, self._id = chaos, id
        self.numbers: list[int] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            with suppress(httpx.HTTPError):
                self._follow()
            time.sleep(0.2)

    def _follow(self) -> None:
        service = self._chaos.any_service()
        headers = {"Authorization": f"Bearer {service.token}"}
        if self.numbers:
            headers["Last-Event-ID"] = str(self.numbers[-1])
        url = f"{service.address}/v1/studies/{self._id}/events"
        with httpx.stream("GET", url, headers=headers, timeout=20) as response:
            for line in response.iter_lines():
                if line.startswith("id: "):
                    self.numbers.append(int(line.removeprefix("id: ")))
                if self.ended.is_set():
                    return


class Chaos:
    """Two services over one database, and what is done to them."""

    def __init__(self, folder: Path, seed: int, postgres: PostgresServer | None) -> None:
        self.random, self.figures = random.Random(seed), Figures(seed)
        self._folder, self._postgres = folder, postgres
        storage = [] if postgres is None else ["--storage", postgres.new_database()]
        self._options = ("--simulated", "3", "--keep-running", *storage)
        first = start_service(folder, *self._options)
        self.services = [first, start_service(folder, *self._options, token=first.token)]
        self.followers: dict[str, Follower] = {}
        self.lock = threading.Lock()

    def any_service(self) -> Service:
        """Return a service that is up."""
        with self.lock:
            return self.random.choice(self.services)

    def call(self, method: str, path: str, **more: Any) -> Any:
        """Return the JSON of an answer, from whatever process answers."""

        def once() -> Any:
            try:
                return (self.any_service().call(method, path, **more),)
            except httpx.TransportError:
                return None
            except httpx.HTTPStatusError as error:
                if error.response.status_code in (500, 503):
                    return None
                raise

        return wait_for(once, f"{method} {path}")[0]

    def submit(self) -> None:
        """Submit studies until enough are open."""
        open_now = [each for each in self.call("GET", "/v1/studies?limit=200")["studies"] if each["state"] not in ENDED]
        for _ in range(MOST_OPEN - len(open_now)):
            id = f"study-{self.figures.studies}"
            settings = {"engine": "simulated", "trials": TRIALS, "seed": self.figures.studies, "reduce": False}
            self.call("POST", "/v1/studies", json={"id": id, "settings": settings | {"sampler": "tpe"}})
            self.figures.studies += 1
            self.followers[id] = follower = Follower(self, id)
            follower.start()

    def fault(self) -> None:
        """Do one fault, and wait until a study has a new event after it."""
        kinds = ["kill a service", "kill a driver", "freeze a driver", "kill a driver"]
        kinds += ["restart PostgreSQL"] if self._postgres is not None else []
        kind = self.random.choice(kinds)
        before = self._events()
        began = time.monotonic()
        {
            "kill a service": self._kill_service,
            "kill a driver": lambda: self._signal_driver(signal.SIGKILL),
            "freeze a driver": self._freeze_driver,
            "restart PostgreSQL": self._restart_postgres,
        }[kind]()
        self.figures.faults[kind] += 1
        wait_for(lambda: self._events() > before or None, f"an event after: {kind}")
        self.figures.recovery_s.append(round(time.monotonic() - began, 2))

    def _events(self) -> int:
        return sum(len(follower.numbers) for follower in self.followers.values())

    def _kill_service(self) -> None:
        index = self.random.randrange(len(self.services))
        service = self.services[index]
        service.kill()
        again = start_service(self._folder, *self._options, token=service.token)
        with self.lock:
            self.services[index] = again

    def _signal_driver(self, number: signal.Signals) -> int | None:
        running = drivers(self._folder)
        if not running:
            return None
        pid = self.random.choice(running)
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid

    def _freeze_driver(self) -> None:
        pid = self._signal_driver(signal.SIGSTOP)
        if pid is not None:
            time.sleep(self.random.uniform(1, 10))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _restart_postgres(self) -> None:
        assert self._postgres is not None
        self._postgres.restart()

    def finish(self) -> None:
        """Wait until every study has ended, end the services, and check what is left."""
        for id in self.followers:
            wait_for(lambda id=id: self._ended(id), f"the end of {id}")  # type: ignore[misc]
        for id, follower in self.followers.items():
            self._check(id, follower)
        for service in self.services:
            service.process.send_signal(signal.SIGTERM)
        for service in self.services:
            service.process.wait(timeout=DEADLINE_S)
        if left := drivers(self._folder):
            self.figures.problems.append(f"{len(left)} drivers are left")

    def _ended(self, id: str) -> Any:
        found = self.call("GET", f"/v1/studies/{id}")
        return found if found["state"] in ENDED else None

    def _check(self, id: str, follower: Follower) -> None:
        problems = self.figures.problems
        found = self.call("GET", f"/v1/studies/{id}")
        if found["state"] != "DONE":
            problems.append(f"{id} is {found['state']}: {found['reason']}")
        trials = self.call("GET", f"/v1/studies/{id}/trials")
        searched = sorted(trial["number"] for trial in trials if not trial["round"] and trial["state"] != "pending")
        self.figures.trials += len(searched)
        if len(searched) != TRIALS or len(set(searched)) != TRIALS:
            problems.append(f"{id} has the trials {searched}")
        events = self.any_service().events(id)
        if [event["number"] for event in events] != list(range(1, len(events) + 1)):
            problems.append(f"{id}: its events have a gap")
        wait_for(lambda: len(follower.numbers) >= len(events) or None, f"the follower of {id}")
        follower.ended.set()
        if follower.numbers != list(range(1, len(events) + 1)):
            problems.append(f"{id}: its follower had a gap")
        ends = Counter((event.get("round"), event["kind"]) for event in events if event["kind"] == "done")
        if sum(ends.values()) != 1:
            problems.append(f"{id} ended {sum(ends.values())} times")


def run(folder: Path, faults: int, seed: int, postgres: PostgresServer | None) -> Figures:
    """Do so many faults and return what was found."""
    chaos = Chaos(folder, seed, postgres)
    try:
        for _ in range(faults):
            chaos.submit()
            time.sleep(chaos.random.uniform(0.0, 3.0))
            chaos.fault()
        chaos.finish()
    except AssertionError as error:
        chaos.figures.problems.append(str(error))
    finally:
        for service in chaos.services:
            service.kill()
        for pid in drivers(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return chaos.figures


def main() -> int:
    """Do the faults and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="service-chaos-")))
        postgres = stack.enter_context(postgres_server(require_programs())) if arguments.postgres else None
        figures = run(folder, arguments.faults, arguments.seed, postgres)
    ordered = sorted(figures.recovery_s)
    shown = asdict(figures) | {"faults": dict(figures.faults), "recovery_s": None}
    shown |= {"median_s": ordered[len(ordered) // 2] if ordered else None, "worst_s": ordered[-1] if ordered else None}
    print(json.dumps(shown, indent=1))
    return 1 if figures.problems else 0


if __name__ == "__main__":
    sys.exit(main())
