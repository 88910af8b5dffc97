"""The engine with the fake vLLM: start, load, failures, stop."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from records.trials import Culprit, FailureKind, Phase, Provenance, TrialKind
from tests.fakes import FAKE_VLLM, install_fake_vllm
from tests.unit.engines.vllm.conftest import LOAD, NEVER, MadeVllm, child_ended_by, failure_of, started
from tests.unit.test_gpu import FakeNvml
from tuner import gpu
from tuner.engines.base import EngineSettings
from tuner.engines.server.devices import WorkerDevice
from tuner.engines.server.program_engine import command_text
from tuner.engines.vllm import engine as vllm_engine
from tuner.engines.vllm.engine import VllmEngine
from tuner.engines.vllm.resident_client import ForkedServerProcess
from tuner.engines.vllm.toolbox import own_environment
from tuner.processes.ports import port_answers
from tuner.processes.records import ProcessRecords
from tuner.processes.secrets import Secrets
from tuner.processes.supervisor import KEPT_BYTES
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.testing.engine import EngineContract
from tuner.trial.pipeline import run_trial

SOON = 10.0

MakeSpec = Callable[..., TrialSpec]
Forking = Callable[..., tuple[VllmEngine, TrialSpec]]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VllmEngine]:
    monkeypatch.setenv("VLLM_LEFT_OVER", "1")
    monkeypatch.setenv("RAY_JOB_ID", "1")
    made = VllmEngine(EngineSettings("vllm", str(install_fake_vllm(tmp_path / "bin")), tmp_path / "home"))
    yield made
    made.close()


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    def make(*argv: str, limits: Limits | None = None, **behaviour: Any) -> TrialSpec:
        environment = {"FAKE_VLLM": json.dumps(behaviour), "OWN": "a b"}
        launch = LaunchSpec(ModelRef("/model", "/tokenizer", "my model"), argv, ("--seed", "0"), environment)
        kind = TrialKind.SEARCH
        return TrialSpec("s", 3, 0, 1, kind, {}, launch, LOAD, 1, tmp_path / "artifacts", limits or Limits())

    return make


class TestContract(EngineContract):
    @pytest.fixture
    def good_spec(self, make_spec: MakeSpec) -> TrialSpec:
        return make_spec("--max-num-seqs", "32", bench_s=0.5)

    @pytest.fixture
    def failing_spec(self, make_spec: MakeSpec) -> TrialSpec:
        return make_spec(fail="oom")


def test_info_names_the_version(engine: VllmEngine) -> None:
    info = engine.info()
    assert (info.name, info.version, info.provenance) == ("vllm", "0.32.0+fake", Provenance.MEASURED)
    assert info.flags is None
    assert info.packages is None


def test_a_trial_runs_from_start_to_stop(engine: VllmEngine, make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec("--max-num-seqs", "32")
    assert engine.check(spec) is None
    server = started(engine, spec)
    server.warm_up(LOAD, NEVER)
    repeats = [server.benchmark(LOAD, index, NEVER) for index in range(2)]
    facts = server.facts()
    assert len(ProcessRecords(tmp_path / "home" / "processes").all()) == 1
    assert server.stop() is None
    assert server.stop() is None
    assert [(repeat.index, repeat.seed, repeat.completed) for repeat in repeats] == [(0, 100, 12), (1, 101, 12)]
    assert facts.kv_cache_tokens is not None
    assert facts.prefix_hit_rate == pytest.approx(0.125)
    assert not port_answers("127.0.0.1", server.port)
    assert ProcessRecords(tmp_path / "home" / "processes").all() == []


def test_the_first_trial_measures_what_later_ones_do_although_its_kernels_are_compiled(
    engine: VllmEngine, make_spec: MakeSpec
) -> None:
    # four users compile a kernel in the first window; the benchmark's twelve requests need another one
    trials = [run_trial(engine, make_spec(compile_s=5.0), NEVER, worker="w0", device="cpu") for _ in range(2)]
    facts = [trial.server for trial in trials if trial.server is not None]
    assert [(each.warmup_windows, each.warmup_settled, each.benchmarks_again) for each in facts] == [
        (3, True, 1),
        (2, True, 0),
    ]
    cold, warm = (trial.metric("output_throughput") for trial in trials)
    assert cold == pytest.approx(warm, rel=0.03)  # the noise is 1 %
    assert [(each.index, each.seed) for trial in trials for each in trial.repeats] == [(0, 10_100), (0, 100)]


class WarmingNvml(FakeNvml):
    """Cards that take 200 W of the machine's own time."""

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return round(200_000 * time.monotonic())


@pytest.mark.parametrize(("nvml", "watts"), [(WarmingNvml(), 200.0), (FakeNvml(counter_mj=None), None)])
def test_a_benchmark_has_the_energy_of_the_servers_gpu(
    engine: VllmEngine, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, watts: float | None
) -> None:
    server = started(engine, make_spec("--max-num-seqs", "32", bench_s=0.5))
    monkeypatch.setattr(gpu, "_pynvml", lambda: nvml)
    monkeypatch.setattr(server, "_devices", (WorkerDevice(1, None),))
    repeat = server.benchmark(LOAD, 0, NEVER)
    server.stop()
    joules, rate = repeat.metrics["joules_per_output_token"], repeat.metrics["output_throughput"]
    if watts is None:
        assert joules is None
    else:
        assert joules is not None
        assert rate is not None
        # the duration cancels: watts are joules a second, and the rate is tokens a second
        assert joules * rate == pytest.approx(watts, rel=0.01)


def test_a_long_log_keeps_its_ends_and_has_no_secret(
    tmp_path: Path, make_spec: MakeSpec, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_secrets", Secrets({"MADE": "made-secret"}))
    server = started(engine, make_spec(log_mb=8))
    log, client = tmp_path / "artifacts" / "server.log", tmp_path / "artifacts" / "bench-0.log"
    client.write_text("key made-secret\n")
    before = log.read_text().splitlines()
    assert log.stat().st_size > 8_000_000
    assert server.stop() is None
    after = log.read_text().splitlines()
    (note,) = [line for line in after if "bytes of this log were cut here" in line]
    place = after.index(note)
    assert log.stat().st_size < 2 * KEPT_BYTES + 200
    assert after[:place] == before[:place]
    assert set(after[place + 1 : place + 1000]) <= set(before)
    assert any("Application startup complete" in line for line in after[place:])
    assert client.read_text() == "key ${MADE}\n"


def test_the_cause_of_a_failure_is_found_at_the_end_of_a_long_log(
    tmp_path: Path, make_spec: MakeSpec, engine: VllmEngine
) -> None:
    spec = make_spec(log_mb=8, fail="oom")
    server = engine.launch(spec, spec.limits)
    assert failure_of(lambda: server.wait_ready(NEVER)).kind is FailureKind.OUT_OF_MEMORY_STARTUP
    assert server.stop() is None
    assert "CUDA out of memory" in (tmp_path / "artifacts" / "server.log").read_text()


def test_the_command_and_its_environment_are_recorded(engine: VllmEngine, make_spec: MakeSpec, tmp_path: Path) -> None:
    server = started(engine, make_spec("--max-num-seqs", "32"))
    environment = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
    server.stop()
    assert server.argv[1:] == (
        *("serve", "/model", "--host", "127.0.0.1", "--port", str(server.port)),
        *("--served-model-name", "my model", "--seed", "0", "--max-num-seqs", "32"),
    )
    cache = str(tmp_path / "home" / "vllm" / "cache")
    assert server.environment["VLLM_CACHE_ROOT"] == cache
    assert server.environment["OWN"] == "a b"
    kept = (tmp_path / "artifacts" / "command.txt").read_text()
    assert "OWN='a b'" in kept
    assert "--served-model-name 'my model'" in kept
    names = {entry.partition(b"=")[0] for entry in environment}
    assert {b"VLLM_CACHE_ROOT", b"VLLM_NO_USAGE_STATS", b"OWN", b"PATH"} <= names
    assert not {b"VLLM_LEFT_OVER", b"RAY_JOB_ID"} & names


@pytest.mark.parametrize(
    ("fail", "kind"),
    [
        ("invalid", FailureKind.INVALID_CONFIGURATION),
        ("oom", FailureKind.OUT_OF_MEMORY_STARTUP),
        ("kv", FailureKind.KV_CACHE_TOO_SMALL),
        ("crash", FailureKind.ENGINE_CRASH),
        ("exit0", FailureKind.ENGINE_CRASH),
    ],
)
def test_a_start_that_fails_is_typed(
    engine: VllmEngine, make_spec: MakeSpec, fail: str, kind: FailureKind, tmp_path: Path
) -> None:
    spec = make_spec(fail=fail)
    server = engine.launch(spec, spec.limits)
    failure = failure_of(lambda: server.wait_ready(NEVER))
    assert (failure.kind, failure.phase) == (kind, Phase.READY)
    assert server.stop() is None
    assert ProcessRecords(tmp_path / "home" / "processes").all() == []


def test_a_start_that_takes_too_long_is_a_timeout(engine: VllmEngine, make_spec: MakeSpec) -> None:
    spec = make_spec(fail="hang", limits=Limits(startup_s=0.3, stop_s=5))
    server = engine.launch(spec, spec.limits)
    assert failure_of(lambda: server.wait_ready(NEVER)).kind is FailureKind.STARTUP_TIMEOUT
    assert server.stop() is None


@pytest.mark.parametrize(("crash", "kind"), [(None, FailureKind.ENGINE_CRASH), ("oom", FailureKind.OUT_OF_MEMORY_LOAD)])
def test_an_engine_that_dies_under_load_is_typed(
    engine: VllmEngine, make_spec: MakeSpec, crash: str | None, kind: FailureKind
) -> None:
    server = started(engine, make_spec(crash_after=6, crash=crash))
    failure = failure_of(lambda: server.benchmark(LOAD, 0, NEVER))
    assert (failure.kind, failure.phase) == (kind, Phase.BENCHMARK)
    assert server.stop() is None


def test_a_killed_server_ends_the_benchmark_at_once(engine: VllmEngine, make_spec: MakeSpec) -> None:
    spec = make_spec()
    server = started(engine, spec)
    server._client_environment["FAKE_VLLM"] = json.dumps({"bench": "hang"})
    timer = threading.Timer(0.3, os.kill, (server.pid, signal.SIGKILL))
    timer.start()
    begun = time.monotonic()
    failure = failure_of(lambda: server.benchmark(LOAD, 0, NEVER))
    assert time.monotonic() - begun < SOON
    assert (failure.kind, failure.exit_code) == (FailureKind.SERVER_KILLED, -9)
    assert server.stop() is None


def test_a_client_without_a_result_is_a_benchmark_failure(engine: VllmEngine, make_spec: MakeSpec) -> None:
    server = started(engine, make_spec())
    server._client_environment["FAKE_VLLM"] = json.dumps({"bench": "exit"})
    failure = failure_of(lambda: server.benchmark(LOAD, 0, NEVER))
    assert (failure.kind, failure.exit_code) == (FailureKind.BENCHMARK_FAILED, 1)
    assert "the fake client is set to fail" in failure.message
    assert server.stop() is None


def test_a_result_with_a_value_that_cannot_be_is_a_benchmark_failure(engine: VllmEngine, make_spec: MakeSpec) -> None:
    server = started(engine, make_spec())
    server._client_environment["FAKE_VLLM"] = json.dumps({"figures": {"completed": 12_000_000}})
    failure = failure_of(lambda: server.benchmark(LOAD, 0, NEVER))
    assert failure.kind is FailureKind.BENCHMARK_FAILED
    assert failure.message == "bench-0.json: completed=12000000: more than the 12 requests that were sent"
    assert server.stop() is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_client_that_a_signal_ends_is_a_failure_of_the_infrastructure(
    engine: VllmEngine, make_spec: MakeSpec, number: signal.Signals
) -> None:
    server = started(engine, make_spec())
    server._client_environment["FAKE_VLLM"] = json.dumps({"bench": "hang"})
    with child_ended_by(number, "bench-0.json"):
        failure = failure_of(lambda: server.benchmark(LOAD, 0, NEVER))
    assert (failure.kind, failure.culprit) == (FailureKind.CLIENT_KILLED, Culprit.INFRASTRUCTURE)
    assert (failure.phase, failure.exit_code) == (Phase.BENCHMARK, -number)
    assert number.name in failure.message
    assert server.stop() is None


def test_a_client_whose_helper_is_killed_is_a_failure_of_the_infrastructure(forking: Forking) -> None:
    server = started(*forking("nobody knows why"))
    server._client_environment["FAKE_VLLM"] = json.dumps({"bench": "hang"})
    with child_ended_by(signal.SIGKILL, "bench-0.json", parent=True):
        failure = failure_of(lambda: server.benchmark(LOAD, 0, NEVER))
    assert (failure.kind, failure.exit_code) == (FailureKind.CLIENT_KILLED, None)
    assert server.stop() is None


def test_a_client_that_hangs_ends_at_its_deadline(engine: VllmEngine, make_spec: MakeSpec) -> None:
    server = started(engine, make_spec(limits=Limits(benchmark_s=0.3)))
    server._client_environment["FAKE_VLLM"] = json.dumps({"bench": "hang"})
    failure = failure_of(lambda: server.benchmark(LOAD, 0, NEVER))
    assert failure.kind is FailureKind.BENCHMARK_FAILED
    assert "not done after 0.3 s" in failure.message
    assert server.stop() is None


def test_failed_requests_are_counted(engine: VllmEngine, make_spec: MakeSpec) -> None:
    server = started(engine, make_spec(fail_every=4))
    repeat = server.benchmark(LOAD, 0, NEVER)
    assert (repeat.offered, repeat.completed, repeat.failed) == (12, 9, 3)
    assert repeat.metrics["success_rate"] == 0.75
    assert server.stop() is None


def test_a_warm_up_without_a_success_ends_the_trial(engine: VllmEngine, make_spec: MakeSpec) -> None:
    server = started(engine, make_spec(fail_every=1))
    failure = failure_of(lambda: server.warm_up(LOAD, NEVER))
    assert (failure.kind, failure.phase) == (FailureKind.REQUESTS_FAILED, Phase.WARMUP)
    assert server.stop() is None


FORKED_OR_NOT = f"""
import os, sys

def main():
    if os.environ.get("VLLM_WORKER_MULTIPROC_METHOD") == "fork":
        sys.exit(os.environ["FORKED_SAYS"])
    os.execv(sys.executable, [sys.executable, {str(FAKE_VLLM)!r}, *sys.argv[1:]])
"""


@pytest.fixture
def forking(made_vllm: MadeVllm, make_spec: MakeSpec, tmp_path: Path) -> Iterator[Forking]:
    """Makes an engine and a trial: its server runs as a command; as a fork it exits with the text."""
    (made_vllm.folder / "vllm" / "entrypoints" / "cli" / "main.py").write_text(FORKED_OR_NOT)
    with contextlib.ExitStack() as stack:

        def make(says: str, **behaviour: Any) -> tuple[VllmEngine, TrialSpec]:
            spec = make_spec(**behaviour)
            spec.launch.environment["FORKED_SAYS"] = says
            servers = dict(spec.launch.environment)
            settings = EngineSettings("vllm", str(made_vllm.executable), tmp_path / "home", environment=servers)
            return stack.enter_context(contextlib.closing(VllmEngine(settings))), spec

        yield make


def test_a_fork_that_fails_without_a_known_cause_is_started_as_the_command(forking: Forking, tmp_path: Path) -> None:
    engine, spec = forking("nobody knows why")
    server = started(engine, spec)
    assert not isinstance(server._process, ForkedServerProcess)
    assert "nobody knows why" in (tmp_path / "artifacts" / "server-forked.log").read_text()
    assert server.stop() is None
    again = engine.launch(spec, spec.limits)
    assert not isinstance(again._process, ForkedServerProcess)
    assert again.stop() is None
    assert ProcessRecords(tmp_path / "home" / "processes").all() == []


def test_a_fork_that_fails_with_a_known_cause_is_not_started_again(forking: Forking, tmp_path: Path) -> None:
    engine, spec = forking("torch.OutOfMemoryError: CUDA out of memory.")
    server = engine.launch(spec, spec.limits)
    assert failure_of(lambda: server.wait_ready(NEVER)).kind is FailureKind.OUT_OF_MEMORY_STARTUP
    assert server.stop() is None
    assert not (tmp_path / "artifacts" / "server-forked.log").exists()


def test_a_server_that_fails_either_way_has_failed(forking: Forking) -> None:
    engine, spec = forking("nobody knows why", fail="crash")
    server = engine.launch(spec, spec.limits)
    assert failure_of(lambda: server.wait_ready(NEVER)).kind is FailureKind.ENGINE_CRASH
    assert server.stop() is None
    again = engine.launch(spec, spec.limits)
    assert isinstance(again._process, ForkedServerProcess)
    assert again.stop() is None


def test_a_server_with_a_variable_of_its_trial_is_not_forked(forking: Forking, tmp_path: Path) -> None:
    engine, spec = forking("a fork")
    spec.launch.environment["OTHER"] = "1"
    server = started(engine, spec)
    assert not isinstance(server._process, ForkedServerProcess)
    assert not (tmp_path / "artifacts" / "server-forked.log").exists()


def test_without_warm_start_servers_are_not_forked(made_vllm: MadeVllm, make_spec: MakeSpec, tmp_path: Path) -> None:
    (made_vllm.folder / "vllm" / "entrypoints" / "cli" / "main.py").write_text(FORKED_OR_NOT)
    engine = VllmEngine(EngineSettings("vllm", str(made_vllm.executable), tmp_path / "home", warm_start=False))
    server = started(engine, make_spec())
    assert not isinstance(server._process, ForkedServerProcess)
    assert not (tmp_path / "artifacts" / "server-forked.log").exists()
    engine.close()


@pytest.mark.parametrize(
    ("argv", "used"),
    [
        ((), [3]),
        (("--tensor-parallel-size", "2"), [3, 4]),
        (("-tp", "2", "-dp", "4"), [3, 4, 5, 6]),
        (("--instances", "2"), [3, 4]),
    ],
)
def test_a_server_uses_the_first_gpus_of_its_worker(
    made_vllm: MadeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], used: list[int]
) -> None:
    devices = tuple(WorkerDevice(index, None) for index in (3, 4, 5, 6))
    monkeypatch.setattr(vllm_engine, "worker_devices", lambda *_: devices)
    engine = VllmEngine(EngineSettings("vllm", str(made_vllm.executable), tmp_path / "home", warm_start=False, gpus=4))
    found = engine._used(LaunchSpec(ModelRef("m", "m", "m"), argv))
    assert [device.index for device in found] == used
    engine.close()


def test_servers_find_tuned_kernels_where_there_are_some(tmp_path: Path) -> None:
    folder = tmp_path / "vllm" / "kernels"
    folder.mkdir(parents=True)
    assert "VLLM_TUNED_CONFIG_FOLDER" not in own_environment(tmp_path)
    (folder / "E=128,N=768,device_name=NVIDIA_H200.json").write_text("{}")
    assert own_environment(tmp_path)["VLLM_TUNED_CONFIG_FOLDER"] == str(folder)


def test_no_server_runs_compiled_code_that_another_user_may_have_written(tmp_path: Path) -> None:
    names = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

    def folders() -> set[Path]:
        variables = own_environment(tmp_path, scratch=tmp_path / "scratch")
        return {Path(variables[name]).parent for name in names}

    assert folders() == {tmp_path / "vllm"}
    (tmp_path / "vllm").mkdir(mode=0o755)
    assert folders() == {tmp_path / "vllm"}
    (tmp_path / "vllm").chmod(0o777)
    assert folders() == {tmp_path / f"vllm-{os.getuid()}"}


def test_a_gpu_is_named_in_pci_order(tmp_path: Path) -> None:
    assert own_environment(tmp_path, [3])["CUDA_VISIBLE_DEVICES"] == "3"
    assert own_environment(tmp_path, [2, 3])["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert own_environment(tmp_path, [3])["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_VISIBLE_DEVICES" not in own_environment(tmp_path)


def test_the_command_text_is_quoted() -> None:
    text = command_text(("vllm", "serve", "my $(model)"), {"B": "x y", "A": "1"})
    assert text == "env A=1 B='x y' vllm serve 'my $(model)'\n"
