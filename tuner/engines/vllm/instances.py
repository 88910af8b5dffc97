"""`tuner-vllm-instances`: several vLLM servers behind one address, with the command line of one.

    tuner-vllm-instances serve MODEL --port 8000 --instances 2 [flags of vllm serve]

It starts `vllm serve` so many times, waits until each is healthy, and starts HAProxy on the port, which sends each
request to the instance with the fewest open ones. `/health` is healthy while all instances are; `/metrics` has the
metrics of all. When one of the processes ends, all end. Any other command than `serve` is passed to `vllm`.

Instances have GPUs of their own if CUDA_VISIBLE_DEVICES names enough, else equal parts of the memory of each; without
the variable, all GPUs of the machine are theirs. Those that share a GPU start one after the other: vLLM measures the
free memory while it starts. Without a GPU, each has an equal part of the cores and of `VLLM_CPU_KVCACHE_SPACE`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import NoReturn

from search_spaces.render import INSTANCES, gpus_of
from tuner.engines.server.metrics import PAGE_LIMIT
from tuner.engines.vllm.kind import LAUNCHER, VLLM_VARIABLE
from tuner.files import home
from tuner.gpu import devices
from tuner.http import get_local
from tuner.processes.ports import lease_port

HOST = "127.0.0.1"
END_S = 25.0
"""Seconds that the instances have to end, before they are killed."""

_POLL_S = 0.2

PROXY_DEFAULTS = """\
defaults
    mode http
    retries 0
    option http-no-delay
    timeout connect 10s
    timeout client 1h
    timeout server 1h
"""
"""HAProxy's: a failed request is not sent again, since each must count, and parts of a stream are sent at once."""

CONFIGURATION = """\
global
    maxconn 4000
    no strict-limits
    nbthread 1
{defaults}frontend api
    bind {host}:{port}
    use_backend watch if {{ path /health /metrics }}
    default_backend instances
backend watch
    server watch 127.0.0.1:{watch}
backend instances
    balance leastconn
{servers}
"""
"""HAProxy's. On two cores, one thread has a lower p99 than two: docs/reports/2026-11-26-router-threads.md."""


class Ended(Exception):
    """A process of the deployment has ended, or a signal asks for it; the argument is the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the deployment until a process of it or a signal ends it; return the exit code."""
    parser = argparse.ArgumentParser(LAUNCHER, allow_abbrev=False, add_help=False)
    parser.add_argument(INSTANCES, type=int, default=1)
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, default=8000)
    given, words = parser.parse_known_args(arguments)
    vllm = shutil.which(os.environ.get(VLLM_VARIABLE) or "vllm") or shutil.which("vllm")
    if vllm is None:
        return _refused(f"there is no vllm on the PATH; install it, or name it by {VLLM_VARIABLE}")
    if words[:1] != ["serve"]:
        os.execv(vllm, [vllm, *(sys.argv[1:] if arguments is None else arguments)])
    if given.instances < 1:
        return _refused(f"{INSTANCES} {given.instances}: at least 1 is needed")
    haproxy = find_haproxy()
    if haproxy is None:
        return _refused("there is no haproxy on the PATH; install it, for example by `apt-get install haproxy`")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    try:
        with ExitStack() as stack:
            _deploy(stack, (vllm, haproxy), words, given.instances, (given.host, given.port))
    except Ended as ended:
        return int(ended.args[0])
    return 0


def _deploy(
    stack: ExitStack, programs: tuple[str, str], words: Sequence[str], count: int, address: tuple[str, int]
) -> NoReturn:
    """Start everything and wait until something ends.

    Args:
        stack: gets what must be ended.
        programs: paths of vLLM and HAProxy.
        words: arguments of vLLM, without an address.
        count: of the instances.
        address: host and port of the deployment.

    Raises:
        Ended: in any case.
    """
    shares = shares_of(count, words, {**_all_gpus(), **os.environ})
    ports = _leased_ports(stack, count, address[1])
    running = stack.enter_context(_processes())
    for share, own in zip(shares, ports, strict=True):
        command = [programs[0], *share.words, "--host", HOST, "--port", str(own)]
        running.append(subprocess.Popen(command, env={**os.environ, **share.environment}, process_group=0))
        if share.alone:
            _wait_until_healthy(running, [own])
    _wait_until_healthy(running, ports)
    watch = stack.enter_context(watching(HOST, ports))
    configuration = stack.enter_context(_configuration(address, watch, ports))
    running.append(subprocess.Popen([programs[1], "-db", "-f", configuration], process_group=0))
    while True:
        _raise_if_ended(running)
        time.sleep(_POLL_S)


def _all_gpus() -> dict[str, str]:
    """Return the variable that names every GPU of the machine; none without one."""
    count = len(devices(environment={}))
    return {VISIBLE: ",".join(map(str, range(count)))} if count else {}


def _leased_ports(stack: ExitStack, count: int, taken: int) -> list[int]:
    """Return ports for the instances, leased until the stack ends; none is `taken`, which HAProxy binds last."""
    leases = [stack.enter_context(lease_port(home() / "ports", HOST)) for _ in range(count + 1)]
    return [lease.port for lease in leases if lease.port != taken][:count]


@contextmanager
def _configuration(address: tuple[str, int], watch: int, ports: Sequence[int]) -> Iterator[Path]:
    servers = "\n".join(f"    server instance{index} {HOST}:{own}" for index, own in enumerate(ports))
    with tempfile.TemporaryDirectory(prefix="tuner-instances-") as folder:
        path = Path(folder) / "haproxy.cfg"
        values = {"host": address[0], "port": address[1], "watch": watch, "servers": servers}
        text = CONFIGURATION.format(defaults=PROXY_DEFAULTS, **values)
        path.write_text(text, encoding="utf-8")
        yield path


@contextmanager
def _processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list of processes, each with a group of its own, and end these at the end.

    The engine of an API server that was killed lives on in its group.
    """
    running: list[subprocess.Popen[bytes]] = []
    try:
        yield running
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for process in reversed(running):
            process.terminate()
        deadline = time.monotonic() + END_S
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait_until_healthy(running: Sequence[subprocess.Popen[bytes]], ports: Sequence[int]) -> None:
    while not all(healthy(HOST, port) for port in ports):
        _raise_if_ended(running)
        time.sleep(_POLL_S)


def _raise_if_ended(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        code = process.poll()
        if code is not None:
            raise Ended(code if code > 0 else 1)


def _end(number: int, _: FrameType | None) -> None:
    raise Ended(0)


def _refused(text: str) -> int:
    print(f"{LAUNCHER}: {text}", file=sys.stderr)
    return 2


VISIBLE = "CUDA_VISIBLE_DEVICES"
MEMORY = "--gpu-memory-utilization"
DEFAULT_MEMORY = 0.9
"""vLLM's default share of a GPU's memory, up to 0.19; later versions take 0.92."""

CPU_MEMORY, CPU_CORES = "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND"
DEFAULT_CPU_GIB = 4.0


@dataclass(frozen=True)
class Share:
    """One instance: the arguments of `vllm`, its variables, and whether it starts before the next one does."""

    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    alone: bool = False


def shares_of(count: int, words: Sequence[str], environment: Mapping[str, str]) -> list[Share]:
    """Return what each of `count` instances gets.

    Args:
        count: of the instances.
        words: arguments of `vllm`.
        environment: CUDA_VISIBLE_DEVICES names the GPUs; without it there are none.
    """
    gpus = [each for each in environment.get(VISIBLE, "").split(",") if each]
    if count == 1:
        return [Share(tuple(words))]
    if not gpus:
        return [_on_cpu(index, count, words, environment) for index in range(count)]
    size = gpus_of(words)
    groups = [gpus[first : first + size] for first in range(0, len(gpus) - size + 1, size)] or [gpus]
    found = []
    for index in range(count):
        place = index % len(groups)
        sharing = len(range(place, count, len(groups)))
        own = {VISIBLE: ",".join(groups[place])}
        found.append(Share(_with_memory(words, sharing), own, alone=sharing > 1))
    return found


def _with_memory(words: Sequence[str], sharing: int) -> tuple[str, ...]:
    """Return the arguments with an equal part of the GPU's memory."""
    if sharing == 1:
        return tuple(words)
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument(MEMORY, "--" + MEMORY[2:].replace("-", "_"), type=float, default=DEFAULT_MEMORY)
    given, rest = parser.parse_known_args(words)
    return (*rest, MEMORY, f"{given.gpu_memory_utilization / sharing:.4g}")


def _on_cpu(index: int, count: int, words: Sequence[str], environment: Mapping[str, str]) -> Share:
    gib = float(environment.get(CPU_MEMORY) or DEFAULT_CPU_GIB) / count
    own = {CPU_MEMORY: str(max(round(gib), 1))}
    cores = sorted(os.sched_getaffinity(0))
    if CPU_CORES not in environment and len(cores) >= count:
        part = cores[index * len(cores) // count : (index + 1) * len(cores) // count]
        own[CPU_CORES] = ",".join(str(core) for core in part)
    return Share(tuple(words), own)


def find_haproxy() -> str | None:
    """Return the path of HAProxy; None without one. Debian installs it where the PATH of a user does not look."""
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]
    return shutil.which("haproxy", path=os.pathsep.join(folders))


TIMEOUT_S = 5.0


def fetched(host: str, port: int, path: str) -> bytes | None:
    """Return the body of a GET; None if a server does not answer with 200 within `TIMEOUT_S` seconds."""
    reply = get_local(host, port, path, TIMEOUT_S, size=PAGE_LIMIT)
    return reply.body if reply is not None and reply.status == 200 else None


def healthy(host: str, port: int) -> bool:
    """Return whether a server answers `/health` with 200."""
    return fetched(host, port, "/health") is not None


def joined_metrics(host: str, ports: Sequence[int]) -> bytes:
    """Return the samples of all instances, without comments; a reader sums those of one name, as over labels."""
    pages = [page for port in ports if (page := fetched(host, port, "/metrics")) is not None]
    lines = [line for page in pages for line in page.splitlines() if line and not line.startswith(b"#")]
    return b"\n".join(lines) + b"\n"


@contextmanager
def watching(host: str, ports: Sequence[int]) -> Iterator[int]:
    """Answer `/health` and `/metrics` for the instances on a port of this machine, which is returned."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._send(200, joined_metrics(host, ports))
            elif self.path == "/health":
                self._send(200 if all(healthy(host, port) for port in ports) else 503, b"")
            else:
                self._send(404, b"")

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write no access log."""

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="watch", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def entry() -> NoReturn:
    """Run the console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
