"""Ray clusters in processes of their own, as `--ray-address` finds them."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from tests.ended_with import living
from tuner.processes.ports import lease_port, port_answers

START_S, KILL_S = 120.0, 30.0
STARTED = "Ray runtime started"
"""What a head says once its node has joined; its port answers seconds earlier."""

RAY = (sys.executable, "-m", "ray.scripts.scripts")


@contextmanager
def running_cluster(cpus: int) -> Iterator[str]:
    """Start a cluster of one node, yield its address, and kill its processes."""
    with tempfile.TemporaryDirectory(prefix="ray-") as name, lease_port(Path(name)) as lease, ExitStack() as stack:
        folder, address = Path(name), f"127.0.0.1:{lease.port}"
        options = ["--head", f"--port={lease.port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        head = stack.enter_context(_node([*RAY, "start", *options, *_node_options(cpus)], folder / "log"))
        deadline = time.monotonic() + START_S
        while STARTED not in (folder / "log").read_text() or not port_answers("127.0.0.1", lease.port):
            assert head.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield address


@contextmanager
def node_without(hidden: Path, address: str, cpus: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Join a node to a cluster in a mount namespace of its own, in which a folder is empty."""
    join = [*RAY, "start", f"--address={address}", *_node_options(cpus)]
    script = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    with _node([*namespace, "sh", "-c", script, "sh", str(hidden), *join], log) as node:
        yield node


def _node_options(cpus: int) -> list[str]:
    return ["--block", f"--num-cpus={cpus}", "--object-store-memory=80000000", "--node-ip-address=127.0.0.1"]


@contextmanager
def _node(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a node and kill its processes at the end."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)  # a local Ray of this process set it against other nodes
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        kill_node(process)


def kill_node(process: subprocess.Popen[bytes]) -> None:
    """Kill every process of a node, as a loss of its power would."""
    if process.poll() is None:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        kill_each(family)
        deadline = time.monotonic() + KILL_S
        while living(family) and time.monotonic() < deadline:
            time.sleep(0.05)
    process.wait()


def kill_each(processes: Iterable[psutil.Process]) -> None:
    """Kill processes, some of which may end by themselves once the first is dead."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
