"""Executors: the contract, the check before a trial, and files carried to workers."""

from __future__ import annotations

import io
import os
import re
import signal
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import ray

from records.trials import Config, Failure, FailureKind, Phase, Provenance, TrialKind
from tests.clusters import running_cluster
from tests.contracts.executor_contract import (
    DEADLINE_S,
    ExecutorContract,
    Make,
    StubFactory,
    gather,
    spec,
    started,
    wait_until_started,
)
from tests.fakes.stub_engine import StubEngine
from tests.some import some
from tuner import __version__
from tuner.engines.base import Engine
from tuner.errors import InfrastructureError, UserError
from tuner.executors import ray_cluster, ray_pool, ray_worker
from tuner.executors.base import CheckedExecutor, Executor, Finished, InlineExecutor
from tuner.executors.ray_pool import RayExecutor, widest
from tuner.executors.ray_worker import Slot
from tuner.processes.family import is_alive
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop


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
def cluster() -> Iterator[str]:
    with running_cluster(cpus=4) as address:
        yield address


def ray_executor(
    make_engine: Callable[[int], Engine],
    devices: list[str],
    folder: Path,
    gpus: bool = False,
    address: str | None = None,
) -> RayExecutor:
    return RayExecutor(
        make_engine, devices, gpus=gpus, provenance=Provenance.SIMULATED, records=folder / "ray", address=address
    )


@pytest.fixture
def make_ray(cluster: str, tmp_path: Path) -> Iterator[Make]:
    made: list[Executor] = []

    def build(factory: Callable[[int], Engine], slots: int) -> Executor:
        devices = ["cpu"] * slots
        made.append(ray_executor(factory, devices, tmp_path, address=cluster))
        return made[-1]

    yield build
    for executor in made:
        executor.close()


class TestRayExecutor(ExecutorContract):
    @pytest.fixture
    def make(self, make_ray: Make) -> Make:
        return make_ray


@pytest.mark.slow
class TestCluster:
    @pytest.fixture
    def make(self, make_ray: Make) -> Make:
        return make_ray

    def test_a_killed_worker_is_infrastructure_and_replaced(self, make: Make, tmp_path: Path) -> None:
        gate = tmp_path / "go"
        executor = started(make, StubFactory(gate), 1)
        assert isinstance(executor, RayExecutor)
        executor.submit(spec(tmp_path, 1), 0)
        process = some(executor._slots[0].process)
        os.kill(process.pid, signal.SIGKILL)
        [finished] = gather(executor, 1)
        assert some(finished.outcome.failure).kind is FailureKind.WORKER_LOST
        gate.touch()
        wait_until_started(executor)
        executor.submit(spec(tmp_path, 1, attempt=2), 0)
        assert gather(executor, 1)[0].outcome.succeeded

    def test_files_of_a_node_without_the_studys_folder_come_home(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executor = started(make, StubFactory(), 1)
        monkeypatch.setattr(ray_worker, "mark_folder", lambda folder: folder.mkdir())  # the worker sees no marker
        executor.submit(spec(tmp_path, 3), 0)
        [finished] = gather(executor, 1)
        assert finished.outcome.artifacts == str(tmp_path / "3")
        assert [path.name for path in (tmp_path / "3").iterdir()] == ["server.log"]
        assert (tmp_path / "3" / "server.log").read_text() == "started\n"

    def test_the_facts_of_every_node(self, make: Make, cluster: str, tmp_path: Path) -> None:
        del make
        [facts] = ray_cluster.look_at_cluster(cluster, "/bin/true", tmp_path)
        assert (facts.host, facts.tuner, facts.gpus) == (os.uname().nodename, __version__, ())
        assert facts.clock_difference_s is None
        assert (facts.vllm, facts.problem) == ("/bin/true", None)
        [without] = ray_cluster.look_at_cluster(cluster, "/nowhere/vllm", tmp_path)
        assert without.vllm is None
        assert "there is no such file" in some(without.problem)
        ray_cluster.leave_cluster()
        assert not ray.is_initialized()

    def test_a_machine_that_is_no_node(self, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_cluster, "_runs_raylet", lambda _: False)
        with pytest.raises(UserError, match=f"not a node of the cluster.*ray start --address={cluster} --num-cpus=0"):
            ray_cluster.look_at_cluster(cluster, "/bin/true", tmp_path)

    def test_more_gpus_than_the_cluster_has(self, cluster: str, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="each worker needs a GPU, and the cluster has 0"):
            ray_executor(StubFactory(), ["h200"] * 2, tmp_path, gpus=True, address=cluster)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([b"/ray/core/src/ray/raylet/raylet", b"--node_id=4f", b"--gcs-address=h:1"], True),
        ([b"/ray/core/src/ray/gcs/gcs_server", b"--node_id=4f"], False),
        ([b"/usr/bin/raylet", b"--version"], False),
        ([b""], False),
    ],
)
def test_a_raylet_is_found_by_its_command_line(tmp_path: Path, words: list[bytes], found: bool) -> None:
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "cmdline").write_bytes(b"\0".join(words) + b"\0")
    (tmp_path / "4712").mkdir()  # it has ended meanwhile
    assert ray_cluster._runs_raylet(tmp_path) is found


@pytest.fixture(scope="class")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
    """An executor with a Ray of its own, whose start takes seconds. It ends with the class: a process has one Ray."""
    executor = ray_executor(StubFactory(), ["cpu"], tmp_path_factory.mktemp("local"))
    yield executor
    executor.close()


def central_process(executor: RayExecutor, name: str) -> psutil.Process:
    """Return the raylet or the control store of an executor's own Ray, never that of the `cluster` of other tests."""
    assert executor._local is not None
    assert executor._local._head is not None
    [found] = [each for each in psutil.Process(executor._local._head.pid).children() if name in each.name()]
    return found


class KilledAtItsFirstStart:
    """A factory whose first worker is killed before it has an engine."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __call__(self, slot: int) -> Engine:
        if not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return StubFactory()(slot)


@pytest.mark.slow
class TestLocalRay:
    """What holds while a Ray runs that nothing happens to; the last test ends it."""

    def test_a_server_has_the_priority_of_the_exported_script(self, local: RayExecutor) -> None:
        wait_until_started(local)
        process = some(local._slots[0].process)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0)

    def test_other_hosts_and_users_have_no_access(self, local: RayExecutor) -> None:
        wait_until_started(local)
        assert local._local is not None
        addresses = {
            connection.laddr.ip
            for member in local._local._family()
            for connection in psutil.Process(member.pid).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
        assert stat.S_IMODE(local._local.folder.stat().st_mode) == 0o700

    def test_it_has_a_small_object_store_and_leaves_no_files(self, local: RayExecutor) -> None:
        local.engine_info()
        store = ray.cluster_resources()["object_store_memory"]  # type: ignore[no-untyped-call]
        assert store <= 100 * 1024 * 1024
        folder = some(local._local).folder
        assert folder.is_dir()
        local.close()
        assert not folder.exists()
        assert not ray.is_initialized()


@pytest.mark.slow
class TestLostLocalRay:
    def test_a_worker_that_is_killed_while_it_starts_is_started_again(self, tmp_path: Path) -> None:
        executor = ray_executor(KilledAtItsFirstStart(tmp_path / "started"), ["cpu"], tmp_path)
        try:
            assert executor.engine_info().version == "0.0+stub"
        finally:
            executor.close()

    def test_a_ray_that_ends_before_its_first_worker_starts_is_started_again(self, tmp_path: Path) -> None:
        executor = ray_executor(StubFactory(), ["cpu"], tmp_path)
        try:
            central_process(executor, "gcs_server").kill()
            assert executor.engine_info().version == "0.0+stub"
        finally:
            executor.close()

    @pytest.mark.parametrize("name", ["raylet", "gcs_server"])
    def test_a_dead_ray_is_started_again(self, name: str, tmp_path: Path) -> None:
        gate = tmp_path / "go"
        executor = ray_executor(StubFactory(gate), ["cpu"], tmp_path)
        try:
            wait_until_started(executor)
            first = some(executor._slots[0].process)
            executor.submit(spec(tmp_path, 1), 0)
            central_process(executor, name).kill()
            [finished] = gather(executor, 1)
            assert some(finished.outcome.failure).kind is FailureKind.WORKER_LOST
            assert not is_alive(first)
            gate.touch()
            wait_until_started(executor)
            executor.submit(spec(tmp_path, 1, attempt=2), 0)
            assert gather(executor, 1)[0].outcome.succeeded
        finally:
            executor.close()


@dataclass(frozen=True)
class SecondFails:
    """Builds a stub engine for slot 0, and fails for every other slot."""

    def __call__(self, slot: int) -> Engine:
        if slot:
            raise InfrastructureError("no engine here")
        return StubFactory()(slot)


@pytest.mark.slow
class TestWorkerThatDoesNotStart:
    def test_a_failed_start_is_repeated_later_and_the_other_worker_takes_trials(
        self,
        cluster: str,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        executor = ray_executor(SecondFails(), ["cpu"] * 2, tmp_path, address=cluster)
        try:
            deadline = time.monotonic() + DEADLINE_S
            while "worker w1 did not start" not in caplog.text or executor.idle() != [0]:
                assert time.monotonic() < deadline
                executor.wait_any(0.1)
            executor.submit(spec(tmp_path, 3), 0)
            assert gather(executor, 1)[0].outcome.succeeded
            requested: list[Slot] = []
            monkeypatch.setattr(executor, "_start_actor", requested.append)
            assert [executor.starting() for _ in range(3)] == [[1]] * 3
            assert requested == []
            executor._slots[1].retry_at = time.monotonic()
            executor.starting()
            assert [slot.index for slot in requested] == [1]
        finally:
            executor.close()

    def test_it_takes_no_trial_and_ends_the_run_at_its_deadline(
        self, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The cluster has 4 CPUs, so the fifth worker waits for a node.
        executor = ray_executor(StubFactory(), ["cpu"] * 5, tmp_path, address=cluster)
        try:
            wait_until_started(executor, 4)
            assert len(executor.idle()) == 4
            [waiting] = executor.starting()
            with pytest.raises(ValueError, match=f"slot {waiting} is busy"):
                executor.submit(spec(Path("unused"), 1), waiting)
            assert executor.wait_any(0.0) == []
            monkeypatch.setattr(ray_pool, "WORKER_START_S", 0.0)
            with pytest.raises(InfrastructureError, match=rf"no room for worker w{waiting} .* see `ray status`"):
                executor.wait_any(0.0)
        finally:
            executor.close()


@dataclass(frozen=True)
class TwoGpus:
    """Builds stub engines of a worker's GPUs, or of some of them, for which it leaves a file."""

    held: Path
    gpu: int = 0
    count: int = 0

    def on_gpus(self, first: int, count: int) -> TwoGpus:
        return TwoGpus(self.held, first, count)

    def __call__(self, slot: int) -> Engine:
        self.held.with_name(f"engine-{slot}-{self.gpu}-{self.count}").touch()
        return StubFactory(self.held)(slot)


def sized(folder: Path, number: int, gpus: int) -> TrialSpec:
    trial = spec(folder, number)
    return replace(trial, gpus=2, launch=replace(trial.launch, argv=("--tensor-parallel-size", str(gpus))))


def test_trials_of_one_gpu_run_beside_each_other(tmp_path: Path) -> None:
    gate, records = tmp_path / "go", tmp_path / "ray"
    executor = RayExecutor(
        TwoGpus(gate), ["2 × H"], gpus=2, provenance=Provenance.SIMULATED, records=records, beside=True
    )
    try:
        wait_until_started(executor)
        assert (executor.slots, executor.idle()) == (1, [0, 1])
        assert [executor.fits(slot, gpus) for slot in (0, 1) for gpus in (1, 2)] == [True, True, True, False]
        executor.submit(sized(tmp_path, 1, 1), 0)
        executor.submit(sized(tmp_path, 2, 1), 1)
        assert (executor.idle(), executor.fits(0, 2)) == ([], False)
        states = [(state.slot, state.device, state.trial) for state in executor.states()]
        assert states == [(0, "2 × H", "1"), (1, "H", "2")]
        gate.touch()
        assert {f.spec.number: (f.slot, f.outcome.succeeded) for f in gather(executor, 2)} == {
            1: (0, True),
            2: (1, True),
        }
        assert (tmp_path / "engine-0-1-1").exists()
        gate.unlink()
        executor.submit(sized(tmp_path, 3, 2), 0)
        assert executor.idle() == []
        with pytest.raises(ValueError, match="slot 1 is busy, too small"):
            executor.submit(sized(tmp_path, 4, 1), 1)
        worker = some(executor._slots[0].process)
        os.kill(worker.pid, signal.SIGKILL)
        [lost] = gather(executor, 1)
        assert some(lost.outcome.failure).kind is FailureKind.WORKER_LOST
        wait_until_started(executor)
        assert executor.idle() == [0, 1]
    finally:
        executor.close()


@pytest.mark.slow
def test_four_gpus_take_two_trials_of_two(tmp_path: Path) -> None:
    gate, records = tmp_path / "go", tmp_path / "ray"
    executor = RayExecutor(
        TwoGpus(gate), ["4 × H"], gpus=4, provenance=Provenance.SIMULATED, records=records, beside=True
    )
    try:
        wait_until_started(executor)
        assert executor.idle() == [0, 1, 2, 3]
        assert [slot for slot in range(4) if executor.fits(slot, 2)] == [0, 2]
        assert [slot for slot in range(4) if executor.fits(slot, 4)] == [0]
        executor.submit(replace(sized(tmp_path, 1, 2), gpus=4), 2)
        assert (executor.idle(), [executor.fits(0, count) for count in (1, 2, 4)]) == ([0, 1], [True, True, False])
        executor.submit(replace(sized(tmp_path, 2, 1), gpus=4), 1)
        assert (executor.idle(), executor.fits(0, 2)) == ([0], False)
        gate.touch()
        assert {f.spec.number: (f.slot, f.outcome.succeeded) for f in gather(executor, 2)} == {
            1: (2, True),
            2: (1, True),
        }
        assert (tmp_path / "engine-0-2-2").exists()
        assert executor.idle() == [0, 1, 2, 3]
    finally:
        executor.close()


@pytest.mark.parametrize(("gpus", "expected"), [(2, [2, 1]), (4, [4, 1, 2, 1]), (6, [6, 1, 2, 3, 2, 1]), (0, [])])
def test_a_trial_begins_at_a_multiple_of_its_gpus(gpus: int, expected: list[int]) -> None:
    assert [widest(gpu, gpus) for gpu in range(gpus)] == expected


def test_a_worker_that_is_lost_with_two_trials_is_replaced_once(tmp_path: Path) -> None:
    started_actors: list[Slot] = []
    executor = RayExecutor.__new__(RayExecutor)
    executor._start_actor = started_actors.append  # type: ignore[assignment,method-assign]
    worker = Slot(0, "2 × H", group=object())
    beside = Slot(1, "H", worker, 1)
    for entry in (worker, beside):
        entry.runs_on = worker.group
    executor._replace_worker(beside)
    worker.group = object()
    executor._replace_worker(worker)
    assert started_actors == [worker]


LOST = Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, "misses quality>=0.99: quality 0.885")


def check(config: Config) -> float | Failure:
    return LOST if config.get("weights") == "broken" else 0.995


def checked_spec(folder: Path) -> TrialSpec:
    load = ClosedLoop(max_concurrency=1, num_prompts=2, input_len=4, output_len=4)
    launch = LaunchSpec(ModelRef("m", "m", "m"), ())
    return TrialSpec("s", 1, 0, 1, TrialKind.SEARCH, {}, launch, load, 2, folder)


def test_lost_answers_fail_the_trial_without_a_server(tmp_path: Path) -> None:
    engine = StubEngine(lambda checked_spec, index: {"output_throughput": 10.0})
    executor = CheckedExecutor(InlineExecutor(lambda _: engine), check)
    executor.submit(replace(checked_spec(tmp_path), config={"weights": "broken"}), 0)
    assert executor.idle() == []
    (finished,) = executor.wait_any(5.0)
    assert (finished.slot, finished.outcome.failure, finished.outcome.repeats) == (0, LOST, ())
    assert executor.idle() == [0]
    executor.close()


def test_quality_is_a_metric_of_every_benchmark(tmp_path: Path) -> None:
    engine = StubEngine(lambda checked_spec, index: {"output_throughput": 10.0})
    executor = CheckedExecutor(InlineExecutor(lambda _: engine), check)
    executor.submit(checked_spec(tmp_path), 0)
    finished: list[Finished] = []
    while not finished:
        finished = executor.wait_any(1.0)
    outcome = finished[0].outcome
    assert [repeat.metrics["quality"] for repeat in outcome.repeats] == [0.995, 0.995]
    assert outcome.metric("quality") == 0.995
    executor.close()


def test_files_and_folders_are_the_same_afterwards(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "plots").mkdir(parents=True)
    (there / "server.log").write_text("ready\n")
    (there / "plots" / "a.csv").write_bytes(b"\x00\xff")
    ray_worker.mark_folder(here)
    assert ray_worker.is_shared(here)
    (there / "link").symlink_to(there / "server.log")
    ray_worker.unpack_files(ray_worker.pack_files(there, "node"), here)
    ray_worker.unmark_folder(here)
    assert not (here / "link").exists()
    assert (here / "server.log").read_text() == "ready\n"
    assert (here / "plots" / "a.csv").read_bytes() == b"\x00\xff"
    assert not ray_worker.is_shared(here)


def test_files_beyond_the_limit_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    (there / "small").write_bytes(b"1" * 10)
    (there / "large").write_bytes(b"2" * 91)
    monkeypatch.setattr(ray_worker, "MAX_BYTES", 100)
    ray_worker.unpack_files(ray_worker.pack_files(there, "node"), here)
    assert sorted(path.name for path in here.iterdir()) == ["left_on_node.txt", "small"]
    assert (here / "left_on_node.txt").read_text() == "large: 91 bytes, removed from node\n"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside", tarfile.REGTYPE),
        ("plots/../../outside", tarfile.REGTYPE),
        ("/outside", tarfile.REGTYPE),
        ("away/outside", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("hard", tarfile.LNKTYPE),
        ("device", tarfile.CHRTYPE),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "away").symlink_to(tmp_path)
    entry, buffer = tarfile.TarInfo(name), io.BytesIO()
    entry.type, entry.linkname = kind, "/etc/passwd"
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(entry)
    with pytest.raises(tarfile.TarError, match=re.escape(f"{name!r} is no file of this folder")):
        ray_worker.unpack_files(buffer.getvalue(), tmp_path / "here")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["away", "here"]


def test_files_that_cannot_be_written_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    ray_worker.bring_back(ray_worker.pack_files(tmp_path, "node"), tmp_path / "file" / "below")
    ray_worker.bring_back(b"no archive", tmp_path)
    ray_worker.bring_back(None, tmp_path)
    assert caplog.text.count("the files of a trial cannot be written to") == 2
