"""How many trials a second, and how soon, the service hands out and takes back; Optuna's gRPC proxy beside it.

    python -m benchmarks.service.load --databases postgresql sqlite
    python -m benchmarks.service.load --databases postgresql --seconds 60 --trial-s 1.6 0 --json load.json

200 clients in one program each ask for a trial, wait `--trial-s` seconds, and complete it, on 50 studies with four
parameters and a random sampler. With 0 they do not wait, so the server is saturated, and latencies are those of a queue
of 200. The server is a real `tuner serve` with a PostgreSQL of its own that waits for the disk at each commit, or with
SQLite. Optuna's side is `run_grpc_proxy_server` on the same PostgreSQL; its clients use `GrpcStorageProxy` and
`RandomSampler` in threads, `study.ask` with four `suggest` calls counts as suggest, `study.tell` as complete.

Clients, server and database share the processors. The table has the load average of the machine before each run: on a
busy machine the figures are lower bounds. Needs PostgreSQL's programs and grpcio.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil

from benchmarks.command_line import documented_parser, exit_on_sigterm, write_json
from benchmarks.service.load_clients import CLIENTS, SPACE, STUDIES, Plan
from benchmarks.text_table import print_table
from tests.postgres import postgres_server, require_postgresql

WARMUP_S = 3.0
READY_S = 120.0


@dataclass(frozen=True)
class Run:
    """What was measured.

    Attributes:
        server: whose.
        database: its database.
        trial_s: pause of a trial in seconds.
        load: load average of the machine before the run.
        trials_s: trials a second in all.
        suggest, complete: seconds of each request.
        errors: number of failed requests.
        memory_mib: largest resident memory of the server in MiB.
        cpu_ms: processor time of a trial in ms: of the server, the database and the clients, warm-up included.
    """

    server: str
    database: str
    trial_s: float
    load: float
    trials_s: float
    suggest: Sequence[float]
    complete: Sequence[float]
    errors: int
    memory_mib: float
    cpu_ms: tuple[float, float, float]


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
def service(folder: Path, url: str, *options: str, first: bool = True) -> Iterator[tuple[int, str, str]]:
    """Run `tuner serve`; yield its process id, address and token.

    Args:
        folder: where it works.
        url: of its database.
        options: further ones of the command.
        first: whether the database has no token yet; else the token is empty.
    """
    command = [sys.executable, "-m", "tuner", "serve", "--port", "0", "--storage", url, "--folder", str(folder / "s")]
    command += options
    pattern = re.compile(r"serves (\S+);.*?(tnr_\w+)" if first else r"serves (\S+);()", re.DOTALL)
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while (found := pattern.search(text)) is None:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"the server did not start: {text}")
            text += line
        _wait_until_ready(urlsplit(found[1]).port or 0, process)
        yield process.pid, found[1], found[2]
    finally:
        process.terminate()
        process.wait()


def create(address: str, token: str, prefix: str) -> None:
    """Create the optimizations of the service."""
    objectives = [{"metric": "loss", "direction": "minimize"}]
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
        for index in range(STUDIES):
            body = {"id": f"{prefix}{index}", "space": SPACE, "objectives": objectives, "sampler": "random"}
            http.post("/v1/optimizations", json=body).raise_for_status()


@contextmanager
def proxy(url: str, prefix: str) -> Iterator[tuple[int, str]]:
    """Run Optuna's gRPC proxy with its studies; yield its process id and its `HOST:PORT`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=_serve_proxy, args=(url, prefix, port))
    process.start()
    try:
        _wait_until_ready(port, process)
        assert process.pid is not None
        yield process.pid, f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join()


def _wait_until_ready(port: int, process: subprocess.Popen[str] | BaseProcess) -> None:
    """Wait until a server listens."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            ended = process.poll() is not None if isinstance(process, subprocess.Popen) else not process.is_alive()
            if time.monotonic() > deadline or ended:
                raise SystemExit("a server did not start") from None
            time.sleep(0.2)


def _serve_proxy(url: str, prefix: str, port: int) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"pool_size": 20, "max_overflow": 20})
    for index in range(STUDIES):
        optuna.create_study(storage=storage, study_name=f"{prefix}{index}", load_if_exists=True)
    optuna.storages.run_grpc_proxy_server(storage, host="127.0.0.1", port=port)


def measured(server: str, database: str, pid: int, postgres: int, plan: Plan) -> Run:
    """Run the clients of a plan and return what they measured."""
    load = os.getloadavg()[0]
    programs = [[psutil.Process(pid)], psutil.Process(postgres).children(recursive=True)]
    before, clients = [_cpu_s(each) for each in programs], resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "benchmarks.service.load_clients", json.dumps(asdict(plan))]
    with Memory(pid) as memory:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    after, used = [_cpu_s(each) for each in programs], resource.getrusage(resource.RUSAGE_CHILDREN)
    client_s = used.ru_utime + used.ru_stime - clients.ru_utime - clients.ru_stime
    times = json.loads(done.stdout)
    spent = (*(end - begin for begin, end in zip(before, after, strict=True)), client_s)
    cpu_ms = tuple(1000 * each / max(times["trials"], 1) for each in spent)
    trials_s = len(times["complete"]) / plan.measured_s
    memory_mib = memory.most / 2**20
    times_of = (times["suggest"], times["complete"], times["errors"])
    return Run(server, database, plan.trial_s, load, trials_s, *times_of, memory_mib, cpu_ms)


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(time.user + time.system for time in (each.cpu_times() for each in processes))


def compare(databases: Sequence[str], pauses: Sequence[float], seconds: float, with_optuna: bool) -> list[Run]:
    """Return the runs of the service on each database, and of Optuna's proxy on PostgreSQL."""
    runs = []
    require_postgresql()
    with TemporaryDirectory() as name, postgres_server(durable=True) as postgres:
        for database in databases:
            folder = Path(name) / database
            folder.mkdir()
            url = postgres.new_database() if database == "postgresql" else str(folder / "tuner.db")
            with service(folder, url) as (pid, address, token):
                for pause in pauses:
                    create(address, token, f"p{pause:g}-")
                    plan = Plan(address, token, f"p{pause:g}-", WARMUP_S + pause, seconds, pause)
                    runs.append(measured("tuner serve", database, pid, postgres.pid, plan))
        for pause in pauses if with_optuna else ():
            url = postgres.new_database().replace("postgresql://", "postgresql+psycopg://")
            with proxy(url, "p") as (pid, target):
                plan = Plan(target, None, "p", WARMUP_S + pause, seconds, pause)
                runs.append(measured("Optuna's proxy", "postgresql", pid, postgres.pid, plan))
    return runs


def show(runs: Sequence[Run], seconds: float) -> None:
    """Print the runs as a table."""
    rows = [
        [
            f"{run.server}, {run.database}",
            f"{run.trial_s:g}",
            f"{run.trials_s:.0f}",
            *(f"{1000 * value:.0f}" for verb in (run.suggest, run.complete) for value in _percentiles(verb)),
            str(run.errors),
            f"{run.memory_mib:.0f}",
            *(f"{each:.1f}" for each in run.cpu_ms),
            f"{run.load:.1f}",
        ]
        for run in runs
    ]
    caption = (
        f"Trials a second in all, and latencies in ms, of {CLIENTS} clients on {STUDIES} studies in {seconds:g} s; the "
        f"pause of a trial in s, the server's largest memory in MiB, the processor time of one trial in ms by program, "
        f"and the load average before the run. Measured on {os.cpu_count()} processors that clients, server and "
        f"database share."
    )
    header = ["server", "pause", "trials/s", "suggest p50", "p99", "complete p50", "p99", "errors", "MiB"]
    header += ["server", "database", "clients", "load"]
    print_table(caption, header, rows)


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    return (float("nan"),) * 2 if not seconds else tuple(np.percentile(seconds, [50, 99]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and print it."""
    parser = documented_parser(__doc__)
    add = parser.add_argument
    add("--databases", nargs="+", choices=("postgresql", "sqlite"), default=["postgresql"], help="of the service")
    add("--trial-s", nargs="+", type=float, default=[1.6, 0.0], metavar="SECONDS", help="pause of a trial [1.6 0]")
    add("--seconds", type=float, default=20.0, help="measured time of each run [20]")
    add("--without-optuna", action="store_true", help="measure the service only")
    add("--json", type=Path, metavar="FILE", help="write percentiles and counts")
    given: argparse.Namespace = parser.parse_args(arguments)
    exit_on_sigterm()
    runs = compare(given.databases, given.trial_s, given.seconds, not given.without_optuna)
    show(runs, given.seconds)
    write_json(given.json, [_summary(run) for run in runs])


def _summary(run: Run) -> dict[str, Any]:
    fields = {**asdict(run), "suggest": _percentiles(run.suggest), "complete": _percentiles(run.complete)}
    return {**fields, "n": len(run.complete), "provenance": "measured"}


if __name__ == "__main__":
    main()
