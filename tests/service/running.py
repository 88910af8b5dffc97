"""A real `tuner serve` in a folder, and what a client asks of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.fakes import WITHOUT_MLFLOW
from tuner.processes.family import read_process_table

DEADLINE_S = 240.0
"""How long nothing may happen on a busy machine; a hang is found after it."""

SMALL = {"num_prompts": 40, "max_concurrency": 10}
"""Settings of a study that nothing happens to while it runs."""

ENDED = ("DONE", "STOPPED", "CANCELLED", "FAILED")


@dataclass
class Service:
    process: subprocess.Popen[str]
    address: str
    token: str
    folder: Path
    log: list[str] = field(default_factory=list)

    def call(self, method: str, path: str, **more: Any) -> Any:
        """Return the JSON of an answer; an error is an exception."""
        headers = {"Authorization": f"Bearer {self.token}"}
        response = httpx.request(method, f"{self.address}{path}", headers=headers, **{"timeout": 60, **more})
        response.raise_for_status()
        return response.json() if response.content else None

    def submit(self, id: str, trials: int = 6, seed: int = 0, **more: Any) -> Any:
        """Submit a simulated study."""
        settings = {"engine": "simulated", "trials": trials, "seed": seed, "reduce": False, **more.pop("settings", {})}
        return self.call("POST", "/v1/studies", json={"id": id, "settings": settings, **more})

    def study(self, id: str) -> Any:
        return self.call("GET", f"/v1/studies/{id}")

    def wait(self, id: str, *states: str) -> Any:
        """Wait until a study is in one of the states, ended ones by default, and return it."""
        deadline, last = time.monotonic() + DEADLINE_S, None
        while (found := self.study(id))["state"] not in (states or ENDED):
            if (now := (found["state"], found["progress"])) != last:
                deadline, last = time.monotonic() + DEADLINE_S, now
            assert time.monotonic() < deadline, f"{id}: nothing happened within {DEADLINE_S:.0f} s: {found}"
            time.sleep(0.1)
        return found

    def wait_for_trials(self, id: str, count: int) -> Any:
        """Wait until a study has so many finished trials."""
        return wait_for(lambda: self._with_trials(id, count), f"{count} trials of {id}")

    def _with_trials(self, id: str, count: int) -> Any:
        found = self.study(id)
        assert found["state"] not in ENDED, found
        return found if (found["progress"] or {"trials": 0})["trials"] >= count else None

    def events(self, id: str) -> list[dict[str, Any]]:
        """Return all events of a study so far."""
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.address}/v1/studies/{id}/events"
        text = httpx.get(url, params={"follow": "false"}, headers=headers, timeout=60).text
        found = re.findall(r"id: (\d+)\nevent: (\w+)\ndata: (.*)\n", text)
        return [{**json.loads(data), "number": int(number), "kind": kind} for number, kind, data in found]

    def driver_of(self, id: str) -> int | None:
        """Return the process of a study's driver; None if there is none."""
        return next(iter(drivers(self.folder, id)), None)

    def kill(self) -> None:
        """Kill the process as `kill -9` does."""
        self.process.kill()
        self.process.wait()


def wait_for(found: Callable[[], Any], what: str) -> Any:
    """Return the first result that is not None; fail after `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        result = found()
        if result is not None:
            return result
        time.sleep(0.1)
    raise AssertionError(f"{what}: nothing happened within {DEADLINE_S:.0f} s")


def drivers(folder: Path, id: str | None = None) -> list[int]:
    """Return the drivers of the services of a folder, or of one submission: those that work in its folder."""
    root = folder / "tuner_service" / "submissions"
    place = str(root if id is None else root / id)
    found = []
    for pid in read_process_table():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            where = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            continue
        if b"tuner.service.driver" in command and (where == place or where.startswith(f"{place}/")):
            found.append(pid)
    return found


def start_service(
    folder: Path, *options: str, token: str | None = None, environment: dict[str, str] | None = None
) -> Service:
    """Start `tuner serve`, whose drivers log nothing to MLflow, and wait until it answers.

    Args:
        folder: where it runs.
        options: of the command.
        token: of an admin; None: the first start prints it.
        environment: further variables.
    """
    log = folder / f"serve-{len(list(folder.glob('serve-*.log')))}.log"
    command = [sys.executable, "-m", "tuner", "serve", "--port", "0", *options]
    variables = {**os.environ, **WITHOUT_MLFLOW, "TUNER_HOME": str(folder / "home"), **(environment or {})}
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT, text=True
        )

    def started() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()
        text = log.read_text()
        if token is None and "tnr_" not in text:
            return None
        return re.search(r"tuner serves (http://\S+);", text)

    address = wait_for(started, "tuner serve")[1]
    secret = token or re.findall(r"tnr_[0-9a-f]{64}", log.read_text())[0]

    def answers() -> bool | None:
        try:
            return httpx.get(f"{address}/readyz", timeout=10).is_success or None
        except httpx.TransportError:
            return None

    wait_for(answers, "the service")
    return Service(process, address, secret, folder)


@contextmanager
def running_service(folder: Path, *options: str, **more: Any) -> Iterator[Service]:
    """Start a service, and end it with its drivers."""
    service = start_service(folder, *options, **more)
    try:
        yield service
    finally:
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(timeout=DEADLINE_S)
        wait_for(lambda: None if drivers(folder) else True, "the end of the drivers")
