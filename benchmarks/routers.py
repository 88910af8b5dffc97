"""What does a router in front of two servers cost?

    python -m benchmarks.routers [--vllm-router VENV/bin/vllm-router] [--rounds 5] [--rates 20 100] [--seconds 10]

Two fake servers send each answer at an exact pace, so what a client measures beyond it is the router's and the
client's own. The same requests go to one of the servers directly, through HAProxy with the configuration of
`tuner-vllm-instances`, and through vLLM's router; the order changes from round to round. The load is open, with
Poisson arrivals.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.command_line import documented_parser
from benchmarks.text_table import number_text, print_table
from tuner.engines.vllm.instances import find_haproxy
from tuner.engines.vllm.instances.launcher import CONFIGURATION, HOST, free_ports
from tuner.engines.vllm.instances.watch import healthy
from tuner.loadgen.plan import PlannedRequest, RequestPlan, write_plan
from tuner.loadgen.result import read_records
from tuner.workloads.results.requests import RequestStatus

ROOT = Path(__file__).parents[1]
FIRST_MS, TOKEN_MS = 20.0, 5.0
"""The servers' pace: the time to the first token, and between two tokens."""
OUTPUT_TOKENS = 64
PROMPT_TOKENS = 256
LIMIT_S = 120.0
START_S = 60.0
DIRECT, HAPROXY, VLLM_ROUTER = "no router", "HAProxy", "vLLM's router"
CAPTION = (
    f"Beyond the servers' pace (first token after {FIRST_MS:g} ms, then one each {TOKEN_MS:g} ms, {OUTPUT_TOKENS} in "
    "all): medians over the rounds of each round's p50 and p99 in ms [lowest, highest round]; processor time of the "
    "router in ms a request and its memory in MiB"
)


@dataclass(frozen=True)
class Round:
    """What a client and the router show in one round; times in ms beyond the servers' pace.

    `router_ms` is the router's processor time a request, `router_mib` its resident memory; None without a router.
    """

    completed: int
    failed: int
    ttft_p50: float
    ttft_p99: float
    gap_p99: float
    router_ms: float | None
    router_mib: float | None


def main() -> None:
    """Run all rounds and print a table for each rate."""
    parser = documented_parser(__doc__)
    parser.add_argument("--vllm-router", type=Path, help="vLLM's router; left out without it")
    parser.add_argument("--rounds", type=int, default=5, help="of each way and rate [5]")
    parser.add_argument("--rates", type=float, nargs="+", default=[20.0, 100.0], help="requests/s [20 100]")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round [10]")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tuner-routers-")))
        ports = [stack.enter_context(_fake_server()) for _ in range(2)]
        ways: dict[str, tuple[int, psutil.Process | None]] = {DIRECT: (ports[0], None)}
        ways |= {name: stack.enter_context(_router(words)) for name, words in _routers(arguments, folder, ports)}
        for rate in arguments.rates:
            rounds = _measure(ways, rate, arguments, folder)
            _print(rate, rounds)


def _routers(
    arguments: argparse.Namespace, folder: Path, ports: Sequence[int]
) -> Iterator[tuple[str, tuple[list[str], int]]]:
    """Yield the name of each router, its command, and the port on which it listens."""
    haproxy = find_haproxy()
    if haproxy is None:
        raise SystemExit("there is no haproxy on the PATH; install it, for example by `apt-get install haproxy`")
    [own] = free_ports(1)
    servers = "\n".join(f"    server instance{index} {HOST}:{port}" for index, port in enumerate(ports))
    configuration = folder / "haproxy.cfg"
    configuration.write_text(CONFIGURATION.format(host=HOST, port=own, watch=ports[0], servers=servers))
    yield HAPROXY, ([haproxy, "-db", "-f", str(configuration)], own)
    if arguments.vllm_router is not None:
        program = shutil.which(arguments.vllm_router)
        if program is None:
            raise SystemExit(f"--vllm-router {arguments.vllm_router}: not an executable file")
        own, metrics = free_ports(2)
        words = [program, "--host", HOST, "--port", str(own), "--prometheus-port", str(metrics)]
        words += ["--policy", "round_robin", "--worker-startup-check-interval", "1", "--log-level", "error"]
        yield VLLM_ROUTER, ([*words, "--worker-urls", *(f"http://{HOST}:{port}" for port in ports)], own)


@contextmanager
def _fake_server() -> Iterator[int]:
    """Run a fake server and yield its port."""
    words = [sys.executable, str(ROOT / "tests" / "fakes" / "streaming_server.py")]
    words += ["--first-ms", str(FIRST_MS), "--token-ms", str(TOKEN_MS)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextmanager
def _router(started: tuple[list[str], int]) -> Iterator[tuple[int, psutil.Process]]:
    """Run a router and yield its port and its process, once it answers."""
    words, port = started
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_healthy(port, process)
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a router answers.

    Raises:
        SystemExit: if it ends, or does not answer within `START_S`.
    """
    begun = time.monotonic()
    while not healthy(HOST, port):
        if process.poll() is not None:
            raise SystemExit(f"{process.args!r} ended with exit code {process.returncode}")
        if time.monotonic() - begun > START_S:
            raise SystemExit(f"{process.args!r} does not answer within {START_S:g} s")
        time.sleep(0.1)


def _measure(
    ways: dict[str, tuple[int, psutil.Process | None]], rate: float, arguments: argparse.Namespace, folder: Path
) -> dict[str, list[Round]]:
    """Return the rounds of each way at one rate; the first round of each, which opens connections, is left out."""
    rounds: dict[str, list[Round]] = {name: [] for name in ways}
    for number in range(arguments.rounds + 1):
        names = list(ways)
        turned = names[number % len(names) :] + names[: number % len(names)]
        requests = _requests(rate, arguments.seconds, seed=number)
        for name in turned:
            port, process = ways[name]
            measured = _run(requests, port, process, folder)
            if number:
                rounds[name].append(measured)
    return rounds


def _requests(rate: float, seconds: float, seed: int) -> list[PlannedRequest]:
    """Return requests at Poisson times."""
    generator = np.random.default_rng(seed)
    count = max(round(rate * seconds), 1)
    times = np.cumsum(generator.exponential(1 / rate, count))
    prompts = generator.integers(0, 30_000, (count, PROMPT_TOKENS)).tolist()
    return [
        PlannedRequest(index, "request", float(at), prompts[index], PROMPT_TOKENS, OUTPUT_TOKENS)
        for index, at in enumerate(times)
    ]


def _run(requests: Sequence[PlannedRequest], port: int, process: psutil.Process | None, folder: Path) -> Round:
    """Send the requests to a port with the tuner's load generator."""
    plan = RequestPlan(f"http://{HOST}:{port}/v1/completions", "fake", None, None, LIMIT_S, LIMIT_S)
    write_plan(folder / "plan.jsonl", plan, requests)
    before = _cpu_s(process)
    words = [sys.executable, "-m", "tuner.loadgen", str(folder / "plan.jsonl"), str(folder / "result")]
    subprocess.run(words, check=True)
    used = _cpu_s(process)
    records = read_records(folder / "result.parquet")
    done = [each for each in records if each.status is RequestStatus.COMPLETED]
    firsts = [(each.sent_s, each.first_token_s) for each in done]
    ttfts = sorted(1000 * (first - sent) - FIRST_MS for sent, first in firsts if sent is not None and first is not None)
    gaps = sorted(1000 * gap - TOKEN_MS for each in done for gap in each.gaps_s)
    return Round(
        *(len(done), len(records) - len(done)),
        *(_percentile(ttfts, 0.5), _percentile(ttfts, 0.99), _percentile(gaps, 0.99)),
        None if process is None else 1000 * (used - before) / len(records),
        None if process is None else process.memory_info().rss / 2**20,
    )


def _cpu_s(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return float(times.user + times.system)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of the values do not exceed; NaN without values."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan


def _print(rate: float, rounds: dict[str, list[Round]]) -> None:
    """Print the table of one rate."""
    rows = []
    for name, measured in rounds.items():
        row = [name, str(sum(each.completed for each in measured)), str(sum(each.failed for each in measured))]
        row += [_spread([getattr(each, field) for each in measured]) for field in ("ttft_p50", "ttft_p99", "gap_p99")]
        for field, digits in (("router_ms", 2), ("router_mib", 0)):
            values = [value for each in measured if (value := getattr(each, field)) is not None]
            row.append(number_text(statistics.median(values) if values else None, digits))
        rows.append(row)
    header = ["", "completed", "failed", "p50 TTFT", "p99 TTFT", "p99 gap", "CPU/request", "memory"]
    print_table(f"{rate:g} requests/s. {CAPTION}; n = {len(rounds[DIRECT])} rounds", header, rows)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


if __name__ == "__main__":
    main()
