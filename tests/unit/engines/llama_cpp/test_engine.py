"""The engine contract on a real llama.cpp with a made model, and what the engine adds to the contract."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from records.trials import FailureKind, Phase, TrialKind
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.llama_cpp.engine import LlamaCppEngine, LlamaCppServer
from tuner.engines.server import traffic as traffic_module
from tuner.errors import TrialFailed
from tuner.loadgen.result import read_records
from tuner.processes.family import is_alive
from tuner.processes.records import ProcessRecords, reap_orphans
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.testing.engine import EngineContract
from tuner.workloads.request_class import RequestClass
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import Traffic

pytestmark = pytest.mark.program("libgomp1")

NEVER = threading.Event()
LOAD = ClosedLoop(max_concurrency=4, num_prompts=16, input_len=24, output_len=8)
FLAGS = ("--threads", "1", "--parallel", "4", "--ctx-size", "1024")
"""Four slots of 256 tokens each, the least that llama.cpp gives a slot."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LlamaCppEngine]:
    made = EngineFactory(EngineSettings("llama.cpp", None, tmp_path / "home"))(0)
    assert isinstance(made, LlamaCppEngine)
    yield made
    made.close()


@pytest.fixture
def good_spec(gguf: Path, tmp_path: Path) -> TrialSpec:
    model = ModelRef(str(gguf), str(gguf), "made model")
    launch = LaunchSpec(model, FLAGS, ("--temp", "1"), {"LLAMA_ARG_POLL": "0"})
    return TrialSpec("study", 0, 0, 1, TrialKind.SEARCH, {}, launch, LOAD, 1, tmp_path / "artifacts")


def with_flags(spec: TrialSpec, *argv: str) -> TrialSpec:
    return replace(spec, launch=replace(spec.launch, argv=argv))


@contextlib.contextmanager
def started(engine: LlamaCppEngine, spec: TrialSpec) -> Iterator[LlamaCppServer]:
    server = engine.launch(spec, spec.limits)
    try:
        server.wait_ready(NEVER)
        yield server
    finally:
        server.stop()


class TestContract(EngineContract):
    @pytest.fixture
    def failing_spec(self, good_spec: TrialSpec) -> TrialSpec:
        return with_flags(good_spec, "--flash-attn", "off", "--cache-type-v", "q8_0")


def test_a_flag_that_the_server_lacks_is_refused_without_a_launch(engine: LlamaCppEngine, good_spec: TrialSpec) -> None:
    refused = engine.check(with_flags(good_spec, "--max-num-seqs", "4"))
    assert refused is not None
    assert (refused.kind, refused.phase) == (FailureKind.INVALID_CONFIGURATION, Phase.CHECK)
    assert refused.message == f"--max-num-seqs is not a flag of llama.cpp {engine.info().version}"


def test_variables_of_the_caller_set_no_flag(
    gguf: Path, good_spec: TrialSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LLAMA_ARG_CTX_SIZE", "GGML_VK_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "7")
    engine = LlamaCppEngine(EngineSettings("llama.cpp", None, tmp_path / "home"))
    with contextlib.closing(engine), started(engine, good_spec) as server:
        environment = psutil.Process(server.pid).environ()
    assert not {"LLAMA_ARG_CTX_SIZE", "GGML_VK_VISIBLE_DEVICES"} & set(environment)
    assert environment["LLAMA_ARG_POLL"] == "0"


def test_every_request_has_exactly_the_planned_tokens_and_none_is_cached(
    engine: LlamaCppEngine, good_spec: TrialSpec
) -> None:
    with started(engine, good_spec) as server:
        repeats = [server.benchmark(LOAD, index, NEVER) for index in range(2)]
        facts = server.facts()
    records = [
        record for index in range(2) for record in read_records(good_spec.artifacts / f"requests-{index}.parquet")
    ]
    assert [(record.input_tokens, record.output_tokens) for record in records] == [(24, 8)] * 32
    assert all(len(record.gaps_s) <= 7 for record in records)
    assert facts.prefix_hit_rate == 0.0
    assert (facts.kv_cache_tokens, facts.max_concurrency) == (1024, 4.0)
    for repeat in repeats:
        tokens = (repeat.metrics["output_throughput"] or 0.0) * (repeat.duration_s or 0.0)
        assert tokens == pytest.approx(16 * 8)


def test_prompts_that_share_a_beginning_are_cached(
    engine: LlamaCppEngine, good_spec: TrialSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_module, "TOLERABLE_DELAY_S", 60.0)  # other tests may keep the generator from its core
    shared = Traffic(
        arrivals={"process": "closed", "users": 1},
        requests=8,
        system_prompt=60,
        classes={"all": RequestClass.model_validate({"input": 4, "output": 1})},
    )
    with started(engine, good_spec) as server:
        repeat = server.benchmark(shared, 0, NEVER)
        facts = server.facts()
    assert (repeat.offered, repeat.completed) == (8, 8)
    assert facts.prefix_hit_rate is not None
    assert facts.prefix_hit_rate > 0.5


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (
            LOAD.model_copy(update={"input_len": 300}),
            "none of 4 requests succeeded: request (300 tokens) exceeds the available context size (256 tokens)",
        ),
        (
            LOAD.model_copy(update={"output_len": 400, "warmup_output_len": 400}),
            "none of 4 requests succeeded: answers were cut off at 255 tokens, the context of a slot",
        ),
    ],
)
def test_a_context_that_is_too_small_is_named(
    engine: LlamaCppEngine, good_spec: TrialSpec, load: ClosedLoop, message: str
) -> None:
    with started(engine, good_spec) as server, pytest.raises(TrialFailed) as caught:
        server.warm_up(load, NEVER)
    failure = caught.value.failure
    assert (failure.kind, failure.phase, failure.message) == (FailureKind.KV_CACHE_TOO_SMALL, Phase.WARMUP, message)


def test_a_server_that_is_killed_under_load_is_typed(engine: LlamaCppEngine, good_spec: TrialSpec) -> None:
    long = LOAD.model_copy(update={"num_prompts": 4000})
    with started(engine, good_spec) as server:
        killer = threading.Timer(1.0, os.kill, (server.pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(TrialFailed) as caught:
            server.benchmark(long, 0, NEVER)
        killer.join()
    assert caught.value.failure.kind is FailureKind.SERVER_KILLED


def test_stop_leaves_nothing(engine: LlamaCppEngine, good_spec: TrialSpec, tmp_path: Path) -> None:
    with started(engine, good_spec) as server:
        members = {server._process.identity, *server._process.descendants()}
    assert not [member for member in members if is_alive(member)]
    assert ProcessRecords(tmp_path / "home" / "processes").all() == []
    assert f" --model {good_spec.launch.model.name} " in (good_spec.artifacts / "command.txt").read_text()


DRIVER = """
import sys, threading
from pathlib import Path
from records.trials import TrialKind
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.processes.family import own_identity
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

gguf, folder = sys.argv[1], Path(sys.argv[2])
engine = EngineFactory(EngineSettings("llama.cpp", None, folder / "home", driver=own_identity()))(0)
launch = LaunchSpec(ModelRef(gguf, gguf, gguf), ("--threads", "1"))
spec = TrialSpec("study", 0, 0, 1, TrialKind.SEARCH, {}, launch, ClosedLoop(), 1, folder / "artifacts")
server = engine.launch(spec, Limits())
server.wait_ready(threading.Event())
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_the_server_of_a_killed_tuner_is_ended_by_the_next_one(gguf: Path, tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, gguf, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    server = psutil.Process(int(driver.stdout.readline()))
    driver.kill()
    driver.communicate()
    records = ProcessRecords(tmp_path / "home" / "processes")
    assert [record.process.pid for record in records.all()] == [server.pid]
    assert server.is_running()
    reap_orphans(tmp_path / "home" / "processes")
    server.wait(10)
    assert records.all() == []
