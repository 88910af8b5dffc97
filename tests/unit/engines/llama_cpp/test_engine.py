"""The engine contract on a real llama.cpp with a made model, and what the engine adds to the contract."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from records.trials import FailureKind, Phase
from tests.contracts.program_engine_contract import LOAD, NEVER, ProgramEngineContract, started, trial_of, with_flags
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.llama_cpp.engine import LlamaCppEngine
from tuner.engines.server import traffic as traffic_module
from tuner.errors import TrialFailed
from tuner.loadgen.result import read_records
from tuner.processes.records import ProcessRecords, reap_orphans
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.request_class import RequestClass
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import Traffic

pytestmark = pytest.mark.program("libgomp1")

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
    launch = LaunchSpec(model, FLAGS, ("--temp", "1"), {"LLAMA_ARG_POLL": "0", "MADE": "1"})
    return trial_of(launch, tmp_path)


class TestContract(ProgramEngineContract):
    dropped = ("LLAMA_ARG_CTX_SIZE", "GGML_VK_VISIBLE_DEVICES")

    @pytest.fixture
    def failing_spec(self, good_spec: TrialSpec) -> TrialSpec:
        return with_flags(good_spec, "--flash-attn", "off", "--cache-type-v", "q8_0")


def test_a_flag_that_the_server_lacks_is_refused_without_a_launch(engine: LlamaCppEngine, good_spec: TrialSpec) -> None:
    refused = engine.check(with_flags(good_spec, "--max-num-seqs", "4"))
    assert refused is not None
    assert (refused.kind, refused.phase) == (FailureKind.INVALID_CONFIGURATION, Phase.CHECK)
    assert refused.message == f"--max-num-seqs is not a flag of llama.cpp {engine.info().version}"


def test_no_repeat_is_cached_and_facts_are_those_of_the_server(engine: LlamaCppEngine, good_spec: TrialSpec) -> None:
    with started(engine, good_spec) as server:
        repeats = [server.benchmark(LOAD, index, NEVER) for index in range(2)]
        facts = server.facts()
    records = [
        record for index in range(2) for record in read_records(good_spec.artifacts / f"requests-{index}.parquet")
    ]
    assert all(len(record.gaps_s) <= 7 for record in records)
    assert facts.prefix_hit_rate == 0.0
    assert (facts.kv_cache_tokens, facts.max_concurrency) == (1024, 4.0)
    for repeat in repeats:
        tokens = (repeat.metrics["output_throughput"] or 0.0) * (repeat.duration_s or 0.0)
        assert tokens == pytest.approx(12 * 8)


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
