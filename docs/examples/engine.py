"""An engine for a toy server: started as a program, measured over HTTP, stopped with everything that it started.

`ToyEngine` implements `tuner.engines.base.Engine` and passes `tuner/testing/engine.py`. The server itself is
this file run as a program:

    python docs/examples/engine.py --port 8000 --model toy --batch 8 --ms-per-token 1
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, ServerFacts
from tuner.cancellation import CancelToken
from tuner.clock import RealClock
from tuner.engines.base import EngineInfo
from tuner.errors import trial_failed
from tuner.processes.ports import PortLease, lease_port
from tuner.processes.readiness import wait_ready
from tuner.processes.records import ProcessRecords
from tuner.processes.supervisor import ServerProcess, start_server
from tuner.specs import Limits, TrialSpec
from tuner.workloads.spec import ClosedLoop, SingleWorkload

HOST = "127.0.0.1"
REQUEST_TIMEOUT_S = 60.0


class ToyServer:
    """One running toy server of a trial; see `tuner.engines.base.Server`."""

    def __init__(self, spec: TrialSpec, limits: Limits, lease: PortLease, process: ServerProcess) -> None:
        self.argv = process_words(spec, lease.port)
        self.environment = dict(spec.launch.environment)
        self._model = spec.launch.model.served_name
        self._log = spec.artifacts / "server.log"
        self._limits, self._lease, self._process = limits, lease, process

    def wait_ready(self, cancelled: CancelToken) -> None:
        """Return once `/health` answers and `/v1/models` names the model."""
        limit_s = self._limits.startup_s
        wait_ready(self._process, HOST, self._lease.port, self._model, limit_s, cancelled, self._classify)

    def _classify(self, phase: Phase, exit_code: int | None) -> Failure:
        """Return the typed failure of a server that has ended, from its log."""
        log = self._log.read_text(encoding="utf-8")
        kind = FailureKind.OUT_OF_MEMORY_STARTUP if "out of memory" in log else FailureKind.ENGINE_CRASH
        return Failure(kind, phase, log.strip().splitlines()[-1] if log.strip() else "no output", exit_code=exit_code)

    def warm_up(self, workload: SingleWorkload, cancelled: CancelToken) -> None:
        """Send one short request per user; their latencies are not scored."""
        short = workload.warmup()
        if isinstance(short, ClosedLoop) and not any(self._send(short, Phase.WARMUP, cancelled)):
            raise trial_failed(FailureKind.REQUESTS_FAILED, Phase.WARMUP, "no warm-up request succeeded")

    def benchmark(self, workload: SingleWorkload, index: int, cancelled: CancelToken) -> Repeat:
        """Send the closed loop once and return its metrics, failed requests included."""
        assert isinstance(workload, ClosedLoop)
        begun = time.monotonic()
        answered = self._send(workload, Phase.BENCHMARK, cancelled)
        duration_s = time.monotonic() - begun
        latencies_ms = [1000 * seconds for seconds in answered if seconds is not None]
        offered, completed = len(answered), len(latencies_ms)
        metrics = {
            "success_rate": completed / offered,
            "output_throughput": completed * workload.output_len / duration_s,
            "median_e2el_ms": statistics.median(latencies_ms) if latencies_ms else None,
        }
        seed = workload.repeat_seed(index)
        return Repeat(index, seed, offered, completed, offered - completed, duration_s, metrics)

    def _send(self, workload: ClosedLoop, phase: Phase, cancelled: CancelToken) -> list[float | None]:
        """Send every request of a closed loop; return latencies in s, None for a request that failed."""
        url = f"http://{HOST}:{self._lease.port}/v1/completions"

        def one(_: int) -> float | None:
            if cancelled.is_set():
                raise trial_failed(FailureKind.CANCELLED, phase, "cancelled during the benchmark")
            begun = time.monotonic()
            try:
                client.post(url, json={"max_tokens": workload.output_len}).raise_for_status()
            except httpx.HTTPError:
                return None
            return time.monotonic() - begun

        users = workload.max_concurrency
        with httpx.Client(timeout=REQUEST_TIMEOUT_S) as client, ThreadPoolExecutor(users) as pool:
            return list(pool.map(one, range(workload.num_prompts)))

    def facts(self) -> ServerFacts:
        """Return nothing: the toy server reports no values of its own."""
        return ServerFacts()

    def stop(self) -> Failure | None:
        """Stop the server and everything that it started; return a failure if a process survives."""
        survivors = self._process.stop(self._limits.stop_s)
        self._lease.release()
        if not survivors:
            return None
        return Failure(FailureKind.ENVIRONMENT_BROKEN, Phase.STOP, f"{len(survivors)} processes survived SIGKILL")


class ToyEngine:
    """Starts toy servers; see `tuner.engines.base.Engine`."""

    def __init__(self, home: Path) -> None:
        """Make an engine whose port locks and process records are in `home`."""
        self.clock = RealClock()
        self._home = home
        self._records = ProcessRecords(home / "processes")

    def info(self) -> EngineInfo:
        """Return name, version and provenance: its values are measured."""
        return EngineInfo("toy", "1.0", sys.executable, frozenset({"--batch", "--ms-per-token"}), Provenance.MEASURED)

    def check(self, spec: TrialSpec) -> Failure | None:
        """Refuse traffic, which this client cannot send, before anything is started."""
        if isinstance(spec.workload, ClosedLoop):
            return None
        return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, "the toy engine runs closed loops only")

    def launch(self, spec: TrialSpec, limits: Limits) -> ToyServer:
        """Start the server on a free port; the supervisor records its process on disk before it runs."""
        spec.artifacts.mkdir(parents=True, exist_ok=True)
        lease = lease_port(self._home / "ports")
        environment = {**os.environ, **spec.launch.environment}
        words, log = process_words(spec, lease.port), spec.artifacts / "server.log"
        process = start_server(words, environment, log, spec.artifacts, self._records, lease.port, f"trial {spec.uid}")
        return ToyServer(spec, limits, lease, process)

    def close(self) -> None:
        """Release nothing: this engine keeps no process between trials."""


def process_words(spec: TrialSpec, port: int) -> tuple[str, ...]:
    """Return the command of a trial's server: the program, the model, and the rendered configuration."""
    launch = spec.launch
    program = (sys.executable, os.path.abspath(__file__), "--port", str(port), "--model", launch.model.name)
    return (*program, "--served-name", launch.model.served_name, *launch.base_argv, *launch.argv)


def serve() -> None:
    """Run the toy server: at most `--batch` requests at a time, `--ms-per-token` for each token."""
    parser = argparse.ArgumentParser()
    for name, default in (("--port", 8000), ("--batch", 4)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--ms-per-token", type=float, default=1.0)
    for name in ("--model", "--served-name"):
        parser.add_argument(name, default="toy")
    options = parser.parse_args()
    if options.batch > 64:
        sys.exit(f"out of memory: a batch of {options.batch} does not fit")
    slots = threading.Semaphore(options.batch)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"data": [{"id": options.served_name}]})

        def do_POST(self) -> None:
            tokens = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
            with slots:
                time.sleep(tokens * options.ms_per_token / 1000)
            self._answer({"choices": [{"text": "a" * tokens}]})

        def _answer(self, body: object) -> None:
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    class Server(ThreadingHTTPServer):
        request_queue_size = 64  # with the default of 5, a client of a busy machine tries again after a second

    Server((HOST, options.port), Handler).serve_forever()


if __name__ == "__main__":
    serve()
