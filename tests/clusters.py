"""A Ray cluster of one node, in processes of its own, as `--ray-address` finds it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tuner.processes.ports import lease_port, port_answers

START_S = 120.0


@contextmanager
def running_cluster(cpus: int) -> Iterator[str]:
    """Start a cluster, yield its address, and kill its processes."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder, lease_port(Path(folder)) as lease:
        address = f"127.0.0.1:{lease.port}"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--num-cpus={cpus}"]
        options = [f"--port={lease.port}", "--include-dashboard=false", "--object-store-memory=80000000"]
        with (Path(folder) / "log").open("wb") as log:
            head = subprocess.Popen(
                [*command, *options, f"--temp-dir={folder}", "--node-ip-address=127.0.0.1"],
                stdout=log,
                stderr=log,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
                start_new_session=True,
            )
            try:
                deadline = time.monotonic() + START_S
                while not port_answers("127.0.0.1", lease.port):
                    assert head.poll() is None, (Path(folder) / "log").read_text()
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                yield address
            finally:
                family = [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]
                for process in family:
                    process.kill()
                psutil.wait_procs(family, 30)
