"""Both executors against the contract, and failures that only Ray has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray

from storage.records import FailureKind, Provenance
from tests.contracts.executor_contract import ExecutorContract, Make, StubFactory, gather, spec
from tuner.engines.base import Engine
from tuner.errors import UserError
from tuner.executors.base import Executor
from tuner.executors.inline import InlineExecutor
from tuner.executors.ray_pool import RayExecutor
from tuner.processes.ports import lease_port, port_answers


class TestInlineExecutor(ExecutorContract):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        made: list[Executor] = []

        def build(factory: Callable[[int], Engine], slots: int) -> Executor:
            made.append(InlineExecutor(factory, slots))
            return made[-1]

        yield build
        for executor in made:
            executor.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray cluster of one node, in processes of its own, as `--ray-address` would find it."""
    with lease_port(tmp_path_factory.mktemp("ports")) as lease, tempfile.TemporaryDirectory(prefix="ray-") as folder:
        address = f"127.0.0.1:{lease.port}"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=4"]
        options = [f"--port={lease.port}", "--include-dashboard=false", "--object-store-memory=80000000"]
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        with (Path(folder) / "log").open("wb") as log:
            head = subprocess.Popen(
                [*command, *options, f"--temp-dir={folder}", "--node-ip-address=127.0.0.1"],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
            try:
                deadline = time.monotonic() + 60
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


class TestRayExecutor(ExecutorContract):
    @pytest.fixture
    def make(self, cluster: str) -> Iterator[Make]:
        made: list[Executor] = []

        def build(factory: Callable[[int], Engine], slots: int) -> Executor:
            devices = ["cpu"] * slots
            made.append(RayExecutor(factory, devices, gpus=False, provenance=Provenance.SIMULATED, address=cluster))
            return made[-1]

        yield build
        for executor in made:
            executor.close()

    def test_a_killed_worker_is_infrastructure_and_replaced(self, make: Make, tmp_path: Path) -> None:
        gate = tmp_path / "go"
        executor = make(StubFactory(gate), 1)
        assert isinstance(executor, RayExecutor)
        executor.submit(spec(tmp_path, 1), 0)
        pid, _ = ray.get(executor._slots[0].actor.identity.remote())
        os.kill(pid, signal.SIGKILL)
        [finished] = gather(executor, 1)
        assert finished.outcome.failure is not None
        assert finished.outcome.failure.kind is FailureKind.WORKER_LOST
        gate.touch()
        executor.submit(spec(tmp_path, 1, attempt=2), 0)
        assert gather(executor, 1)[0].outcome.succeeded

    def test_more_gpus_than_the_cluster_has(self, cluster: str) -> None:
        with pytest.raises(UserError, match="each worker needs a GPU, and the cluster has 0"):
            RayExecutor(StubFactory(), ["h200"] * 2, gpus=True, provenance=Provenance.SIMULATED, address=cluster)


class TestRayInProcess:
    def test_ray_gets_a_small_object_store_and_leaves_no_files(self) -> None:
        executor = RayExecutor(StubFactory(), ["cpu"], gpus=False, provenance=Provenance.SIMULATED)
        executor.engine_info()
        store = ray.cluster_resources()["object_store_memory"]
        assert store <= 100 * 1024 * 1024
        folder = executor._folder
        assert folder is not None
        assert folder.is_dir()
        executor.close()
        assert not folder.exists()
        assert not ray.is_initialized()

    def test_a_server_has_the_priority_of_the_exported_script(self) -> None:
        executor = RayExecutor(StubFactory(), ["cpu"], gpus=False, provenance=Provenance.SIMULATED)
        pid, _ = ray.get(executor._slots[0].actor.identity.remote())
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)
        executor.close()
