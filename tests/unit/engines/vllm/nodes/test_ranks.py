"""A server over two nodes, with the fake vLLM and both nodes on this machine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from records.trials import Failure, FailureKind, Phase, TrialKind
from tests.fakes import install_fake_vllm
from tests.unit.engines.vllm.conftest import LOAD, NEVER, failure_of, started
from tuner.engines.base import EngineSettings
from tuner.engines.vllm.engine import VllmEngine
from tuner.engines.vllm.nodes import Meeting, RankedProcess, RankEnd, RankHost, RankStart, RankStopped, headless
from tuner.processes.family import is_alive
from tuner.processes.records import ProcessRecords
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

TWO = ("--tensor-parallel-size", "2")

MakeSpec = Callable[..., TrialSpec]


class Node:
    """A node that is this machine; `lost` is why Ray would report it as dead."""

    name = "b"

    def __init__(self, settings: EngineSettings) -> None:
        self.host = RankHost(settings, "127.0.0.2")
        self.lost: str | None = None
        self.refuses: Failure | None = None
        self._pool = ThreadPoolExecutor(4)
        self._end: Future[RankEnd | None] | None = None
        self._stop: Future[RankStopped] | None = None

    def start(self, rank: RankStart) -> Failure | None:
        failure = self.refuses or self.host.start(rank)
        self._end = None if failure else self._pool.submit(self.host.wait_end)
        return failure

    def ended(self, timeout_s: float) -> RankEnd | None:
        if self.lost is not None:
            return RankEnd("", None, self.lost)
        try:
            return None if self._end is None else self._end.result(timeout_s)
        except NotYet:
            return None

    def request_stop(self, grace_s: float) -> None:
        self._stop = self._pool.submit(self.host.stop, grace_s)

    def stopped(self) -> RankStopped:
        assert self._stop is not None
        return self._stop.result()

    def close(self) -> None:
        self.host.close()
        self._pool.shutdown()


@pytest.fixture
def settings(tmp_path: Path) -> EngineSettings:
    return EngineSettings("vllm", str(install_fake_vllm(tmp_path / "bin")), tmp_path / "home", warm_start=False)


@pytest.fixture
def node(settings: EngineSettings, tmp_path: Path) -> Iterator[Node]:
    made = Node(replace(settings, home=tmp_path / "other-home"))
    yield made
    made.close()


@pytest.fixture
def engine(settings: EngineSettings, node: Node) -> Iterator[VllmEngine]:
    made = VllmEngine(settings, [node])
    yield made
    made.close()


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    def make(*argv: str, **behaviour: Any) -> TrialSpec:
        launch = LaunchSpec(ModelRef("/model", "/tokenizer", "m"), argv, (), {"FAKE_VLLM": json.dumps(behaviour)})
        return TrialSpec("s", 3, 0, 1, TrialKind.SEARCH, {}, launch, LOAD, 1, tmp_path / "artifacts", gpus=2)

    return make


def rank_pid(node: Node) -> int:
    process = node.host._process
    assert process is not None
    return process.pid


def test_the_ranks_of_a_server_start_together_and_end_together(
    engine: VllmEngine, node: Node, make_spec: MakeSpec, tmp_path: Path
) -> None:
    server = started(engine, make_spec(*TWO, "--api-server-count", "1"))
    [record] = ProcessRecords(tmp_path / "other-home" / "processes").all()
    assert record.label == "s trial 3 rank 1"
    assert record.argv[-1] == "--headless"
    assert "--api-server-count" not in record.argv
    assert "--headless" not in server.argv
    assert server.argv[server.argv.index("--nnodes") :][:4] == ("--nnodes", "2", "--node-rank", "0")
    assert server.environment["VLLM_HOST_IP"] == "127.0.0.1"
    rank = record.process
    assert server.stop() is None
    assert not is_alive(rank)
    assert ProcessRecords(tmp_path / "other-home" / "processes").all() == []
    assert "world_size=2 rank=1 backend=fake host_ip=127.0.0.2" in (tmp_path / "artifacts/server-rank1.log").read_text()


def test_a_configuration_that_one_node_holds_is_a_plain_server(
    engine: VllmEngine, node: Node, make_spec: MakeSpec
) -> None:
    server = started(engine, make_spec())
    assert "--nnodes" not in server.argv
    assert "VLLM_HOST_IP" not in server.environment
    assert node.host._process is None
    assert server.stop() is None


def test_the_check_reads_the_flags_of_the_ranks(engine: VllmEngine, make_spec: MakeSpec) -> None:
    """Without them, vLLM refuses more GPUs than its machine has."""
    assert engine.check(make_spec(*TWO)) is None
    assert "--nnodes" in engine._meeting(make_spec(*TWO).launch, 1, 2).flags(0, ())  # type: ignore[union-attr]


@pytest.mark.parametrize("lost_rank", ["crash", "hang"])
def test_a_killed_rank_ends_the_server(engine: VllmEngine, node: Node, make_spec: MakeSpec, lost_rank: str) -> None:
    """Rank 0 may crash for want of the other, which is no failure of the configuration."""
    server = started(engine, make_spec(*TWO, lost_rank=lost_rank))
    os.kill(rank_pid(node), signal.SIGKILL)
    failure = failure_of(lambda: server.benchmark(ClosedLoop(num_prompts=100_000), 0, NEVER))
    assert failure.kind is FailureKind.SERVER_KILLED
    assert failure.message.startswith("rank 1 on node b: the server was killed from outside (SIGKILL)")
    assert server.stop() is None


def test_the_cause_is_read_where_it_is_logged(engine: VllmEngine, make_spec: MakeSpec) -> None:
    spec = make_spec(*TWO, rank_fails="oom")
    server = engine.launch(spec, spec.limits)
    failure = failure_of(lambda: server.wait_ready(NEVER))
    assert failure.kind is FailureKind.OUT_OF_MEMORY_STARTUP
    assert failure.message.startswith("rank 1 on node b: torch.OutOfMemoryError")
    assert server.stop() is None


def test_a_lost_node_is_infrastructure(engine: VllmEngine, node: Node, make_spec: MakeSpec) -> None:
    server = started(engine, make_spec(*TWO))
    node.lost = "the actor died"
    failure = failure_of(lambda: server.benchmark(ClosedLoop(num_prompts=100_000), 0, NEVER))
    assert failure.kind is FailureKind.WORKER_LOST
    assert failure.message == "node b with rank 1 was lost: the actor died"
    assert server.stop() is None


def test_no_rank_runs_if_one_cannot_start(engine: VllmEngine, node: Node, make_spec: MakeSpec, tmp_path: Path) -> None:
    node.refuses = Failure(FailureKind.GPU_BUSY, Phase.LAUNCH, "GPU 0 has 3 GiB in use")
    spec = make_spec(*TWO)
    failure = failure_of(lambda: engine.launch(spec, spec.limits))
    assert (failure.kind, failure.message) == (FailureKind.GPU_BUSY, "node b: GPU 0 has 3 GiB in use")
    assert ProcessRecords(tmp_path / "home" / "processes").all() == []


def test_energy_of_a_part_is_left_out(engine: VllmEngine, make_spec: MakeSpec) -> None:
    server = started(engine, make_spec(*TWO))
    assert isinstance(server._process, RankedProcess)
    assert server._metered() == []
    assert server.stop() is None


def test_the_flags_of_a_rank() -> None:
    meeting = Meeting(2, "10.0.0.1", 21000, 21001)
    common = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port", "21000")
    assert meeting.flags(1, TWO) == (*common, "--headless")
    assert meeting.flags(1, ("-dp=2",)) == (*common, "--data-parallel-rpc-port", "21001", "--headless")
    assert "--headless" not in meeting.flags(0, TWO)


@pytest.mark.parametrize("flag", [("--api-server-count", "4"), ("--api_server_count=4",), ("-asc", "4")])
def test_a_rank_without_api_servers_has_no_flag_for_them(flag: tuple[str, ...]) -> None:
    assert headless(("serve", "m", *flag, "--seed", "0")) == ("serve", "m", "--seed", "0")
