"""The engine against a real vLLM: one server for all of it."""

import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from records.trials import FailureKind, Phase, Repeat, TrialKind
from tuner.engines.server.traffic import Job, PlainJob
from tuner.engines.vllm.engine import VllmEngine, VllmServer
from tuner.engines.vllm.resident_client import ForkedServerProcess, ResidentJob
from tuner.engines.vllm.toolbox import Toolbox
from tuner.processes.family import is_alive
from tuner.processes.ports import port_answers
from tuner.processes.records import ProcessRecords
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

NEVER = threading.Event()
Start = Callable[[Toolbox, Sequence[str], Mapping[str, str], Path, Path], Job]
LOAD = ClosedLoop(max_concurrency=10, num_prompts=60, input_len=64, output_len=32)


@pytest.fixture(scope="module")
def spec(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> TrialSpec:
    model = ModelRef(str(tiny_model), str(tiny_model), "tiny model")
    base = ("--load-format", "dummy", "--max-model-len", "512")
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    launch = LaunchSpec(model, ("--max-num-seqs", "16", "--enforce-eager"), base, environment)
    artifacts = tmp_path_factory.mktemp("artifacts")
    return TrialSpec("real", 0, 0, 1, TrialKind.SEARCH, {}, launch, LOAD, 1, artifacts)


@pytest.fixture(scope="module")
def server(engine: VllmEngine, spec: TrialSpec) -> Iterator[VllmServer]:
    started = engine.launch(spec, spec.limits)
    try:
        started.wait_ready(NEVER)
        started.warm_up(LOAD, NEVER)
        yield started
    finally:
        started.stop()


def with_flags(spec: TrialSpec, *argv: str, **environment: str) -> TrialSpec:
    launch = replace(spec.launch, argv=argv, environment={**spec.launch.environment, **environment})
    return replace(spec, launch=launch)


def test_the_parser_is_read(engine: VllmEngine) -> None:
    info = engine.info()
    assert info.version[0].isdigit()
    assert info.flags is not None
    assert {"--max-num-seqs", "--speculative-config", "--compilation-config", "--no-async-scheduling"} <= info.flags
    assert "--swap-space-of-nobody" not in info.flags


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--max-num-seqs", "32", "--max-num-batched-tokens", "16"), "max_num_batched_tokens (16) must be greater"),
        (("--max-model-len", "99999"), "User-specified max_model_len (99999) is greater"),
        (("--quantization", "nonsense"), "Unknown quantization method: nonsense"),
        (("--no-such-flag",), "--no-such-flag is not a flag"),
        (("--stream-interval", "0"), "stream_interval: Input should be greater than or equal to 1"),
        (
            ("--async-scheduling", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'),
            "async scheduling is only supported with",
        ),
    ],
)
def test_vllm_itself_refuses_a_configuration_without_a_launch(
    engine: VllmEngine, spec: TrialSpec, argv: tuple[str, ...], message: str
) -> None:
    refused = engine.check(with_flags(spec, *argv))
    assert refused is not None
    assert (refused.kind, refused.phase) == (FailureKind.INVALID_CONFIGURATION, Phase.CHECK)
    assert message in refused.message


def test_vllm_inspects_models_through_the_function_that_a_check_replaces(engine: VllmEngine) -> None:
    python = engine._tools.installation.python
    assert python is not None
    [registry] = python.parent.parent.glob("lib/python*/site-packages/vllm/model_executor/models/registry.py")
    assert "mi = _run_in_subprocess(" in registry.read_text()


def test_a_good_configuration_passes(engine: VllmEngine, spec: TrialSpec) -> None:
    assert engine.check(spec) is None


def test_the_resident_client_has_the_counts_of_the_plain_command(
    server: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts and names of metrics, which do not depend on how busy the machine is."""
    started: list[type] = []

    def plain_start(
        self: Toolbox, arguments: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path
    ) -> Job:
        return PlainJob([str(self.installation.executable), *arguments], environment, log, cwd, self.records)

    def kept(start: Start) -> Start:
        def run(self: Toolbox, arguments: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path) -> Job:
            job = start(self, arguments, environment, log, cwd)
            started.append(type(job))
            return job

        return run

    runs: list[Repeat] = []
    starts: tuple[Start, ...] = (Toolbox.start, plain_start)
    for seed, start in enumerate(starts):
        monkeypatch.setattr(Toolbox, "start", kept(start))
        runs.append(server.benchmark(LOAD, seed, NEVER))
    assert started == [ResidentJob, PlainJob]
    assert [(run.offered, run.completed, run.failed) for run in runs] == [(60, 60, 0), (60, 60, 0)]
    resident, plain = ({name for name, value in run.metrics.items() if value is not None} for run in runs)
    assert resident == plain >= {"output_throughput", "p99_ttft_ms", "p99_tpot_ms"}
    tokens = [(run.metrics["output_throughput"] or 0.0) * (run.duration_s or 0.0) for run in runs]
    assert tokens == [pytest.approx(60 * 32), pytest.approx(60 * 32)]


def test_the_server_is_forked_from_the_helper(server: VllmServer) -> None:
    assert type(server._process) is ForkedServerProcess


def test_the_server_reports_its_facts(server: VllmServer) -> None:
    server.benchmark(LOAD, 10, NEVER)
    facts = server.facts()
    assert facts.kv_cache_tokens == 524288
    assert facts.engine_init_s is not None
    assert facts.preemptions == 0.0
    assert facts.queue_time_mean_s is not None


def test_stop_leaves_nothing(engine: VllmEngine, server: VllmServer, spec: TrialSpec) -> None:
    members = {server._process.identity, *server._process.descendants()}
    assert len(members) >= 2
    assert server.stop() is None
    assert not [member for member in members if is_alive(member)]
    assert not port_answers("127.0.0.1", server.port)
    assert ProcessRecords(engine._home / "processes").all() == []
    assert f" serve {spec.launch.model.name} " in (spec.artifacts / "command.txt").read_text()


@pytest.mark.release
def test_several_api_servers_are_forks_and_count_together(engine: VllmEngine, spec: TrialSpec, tmp_path: Path) -> None:
    several = with_flags(spec, *spec.launch.argv, "--api-server-count", "2")
    server = engine.launch(replace(several, artifacts=tmp_path), spec.limits)
    try:
        server.wait_ready(NEVER)
        words = [Path(f"/proc/{member.pid}/cmdline").read_text() for member in server._process.descendants()]
        assert sum("helper.py" in each for each in words) == 2
        repeat = server.benchmark(LOAD, 1, NEVER)
        assert (repeat.completed, repeat.failed) == (60, 0)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            counted = [line.split()[-1] for line in answer.read().decode().splitlines() if 'reason="length"' in line]
        assert sum(map(float, counted)) == 60
        members = {server._process.identity, *server._process.descendants()}
    finally:
        assert server.stop() is None
    assert not [member for member in members if is_alive(member)]
