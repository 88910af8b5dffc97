"""Two services over one database, and their clients."""

import json
import random
import re
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.fakes import install_fake_vllm
from tests.mlflow_server import MlflowServer
from tests.postgres import PostgresServer
from tests.service.running import ENDED, Service, start_service, wait_for

SIMULATED, CPU = "simulated", "cpu"
TRIALS = {SIMULATED: 40, CPU: 8}
DEVICES = 2
"""For simulated studies; the CPU is one more device."""
BENCHMARK_S = 0.4
STATES = ("queued", "started", "lost", *(state.lower() for state in ENDED))
"""Events that change whether a study has ended; a lost driver may end it, too, which its next look tells."""
ANSWER_S = 20.0
"""How long a client waits for an answer: a frozen process gives none."""


class Surroundings:
    """Two processes of `tuner serve`, both of which may schedule, and what they use.

    Args:
        folder: of the services.
        seed: of the random choices.
        postgres: where the database is; None: in a SQLite file.
        mlflow: where the studies are logged; None: in a SQLite file.
    """

    def __init__(
        self, folder: Path, seed: int, postgres: PostgresServer | None = None, mlflow: MlflowServer | None = None
    ) -> None:
        self.folder, self.random, self.seed = folder, random.Random(seed), seed
        self.postgres, self.mlflow = postgres, mlflow
        self.home = folder / "home"
        given = None if postgres is None else postgres.new_database()
        self.storage = given or f"sqlite:///{folder}/tuner_study/tuner.db"
        self._model = make_model(folder / "models" / "small")
        vllm = install_fake_vllm(folder / "bin", bench_s=BENCHMARK_S)
        self._options = ["--simulated", str(DEVICES), "--keep-running", "--vllm", str(vllm)]
        self._options += ["--model-folder", str(self._model.parent), *([] if given is None else ["--storage", given])]
        self._environment = {} if mlflow is None else {"MLFLOW_TRACKING_URI": mlflow.url}
        first = self.start(None)
        self.services = [first, self.start(first.token)]
        self.lock = threading.Lock()

    def start(self, token: str | None) -> Service:
        """Start a process of the service."""
        return start_service(self.folder, *self._options, token=token, environment=self._environment)

    def any_service(self) -> Service:
        """Return one of the processes, whatever its state."""
        with self.lock:
            return self.random.choice(self.services)

    def replace(self, dead: Service) -> None:
        """Start a process in the place of one that has ended."""
        again = self.start(dead.token)
        with self.lock:
            self.services[self.services.index(dead)] = again

    def call(self, method: str, path: str, **more: Any) -> Any:
        """Return the JSON of an answer, from whatever process answers."""

        def once() -> Any:
            try:
                return (self.any_service().call(method, path, timeout=ANSWER_S, **more),)
            except httpx.TransportError:
                return None
            except httpx.HTTPStatusError as error:
                if error.response.status_code in (500, 503):
                    return None
                raise

        return wait_for(once, f"{method} {path}")[0]

    def submit(self, id: str, kind: str, seed: int) -> None:
        """Submit a study that starts servers on the CPU, or a simulated one."""
        settings: dict[str, Any] = {
            "trials": TRIALS[kind],
            "seed": seed,
            "reduce": False,
            "finalists": 2,
            "confirm_rounds": 1,
        }
        if kind == SIMULATED:
            settings |= {"engine": "simulated", "sampler": "tpe", "min_gain": 0}
        else:
            settings |= {"model": str(self._model), "space": "cpu", "input_len": 128, "output_len": 64}
            settings |= {"num_prompts": 40, "max_concurrency": 10, "server_arguments": ["--max-model-len", "1024"]}
        self.call("POST", "/v1/studies", json={"id": id, "kind": kind, "settings": settings})

    def events(self, id: str) -> list[dict[str, Any]]:
        """Return all events of a study so far; `about` has their data."""

        def once() -> list[dict[str, Any]] | None:
            with suppress(httpx.TransportError):
                service = self.any_service()
                headers = {"Authorization": f"Bearer {service.token}"}
                url = f"{service.address}/v1/studies/{id}/events?follow=false"
                answer = httpx.get(url, headers=headers, timeout=ANSWER_S)
                if answer.is_success:
                    found = re.findall(r"id: (\d+)\nevent: (\w+)\ndata: (.*)\n", answer.text)
                    return [{"number": int(n), "kind": kind, "about": json.loads(data)} for n, kind, data in found]
            return None

        events: list[dict[str, Any]] = wait_for(once, f"the events of {id}")
        return events

    def query(self, statement: str) -> list[Any]:
        """Return the rows of a statement, once the database answers."""

        def rows() -> list[Any] | None:
            with suppress(psycopg.OperationalError, sqlite3.OperationalError):
                if self.postgres is not None:
                    with psycopg.connect(self.storage) as connection:
                        return connection.execute(statement).fetchall()
                with closing(sqlite3.connect(self.storage.removeprefix("sqlite:///"), timeout=30)) as database:
                    return database.execute(statement).fetchall()
            return None

        found: list[Any] = wait_for(rows, statement)
        return found

    def leader(self) -> tuple[Service | None, int]:
        """Return the process that has the scheduler's lease, and the lease's term; None if it has ended."""
        [(holder, term)] = self.query("SELECT holder, term FROM tuner_leases WHERE name = 'scheduler'")
        pid = int(str(holder).rsplit("-", 2)[1])
        return next((each for each in self.services if each.process.pid == pid), None), int(term)


class Follower(threading.Thread):
    """A client that follows one study's events and connects again with the last number that it has."""

    def __init__(self, around: Surroundings, id: str) -> None:
        super().__init__(daemon=True)
        self._around, self._id = around, id
        self.numbers: list[int] = []
        self.trials = 0
        self.has_ended = False
        """Whether the last event that changed the state ended the study."""
        self.ended = threading.Event()

    def run(self) -> None:
        """Follow, over lost connections."""
        while not self.ended.is_set():
            with suppress(httpx.HTTPError):
                self._follow()
            time.sleep(0.2)

    def _follow(self) -> None:
        service = self._around.any_service()
        headers = {"Authorization": f"Bearer {service.token}"}
        if self.numbers:
            headers["Last-Event-ID"] = str(self.numbers[-1])
        url = f"{service.address}/v1/studies/{self._id}/events"
        with httpx.stream("GET", url, headers=headers, timeout=ANSWER_S) as response:
            for line in response.iter_lines():
                if line.startswith("id: "):
                    self.numbers.append(int(line.removeprefix("id: ")))
                self.trials += line == "event: trial"
                if line.startswith("event: ") and line.removeprefix("event: ") in STATES:
                    self.has_ended = line.removeprefix("event: ").upper() in ENDED
                if self.ended.is_set():
                    return


def make_model(folder: Path) -> Path:
    """Write the files of a model for the fake vLLM."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    return folder
