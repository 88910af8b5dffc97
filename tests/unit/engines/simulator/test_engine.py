"""The simulated engine passes the contract of every engine, on a virtual clock."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from records.trials import Culprit, FailureKind, Phase, Provenance, TrialKind
from search_spaces import hardware_named
from tests.some import some
from tests.unit.engines.simulator.helpers import SMALL
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.simulator.engine import LOG_BANNER, SimulatedEngine
from tuner.engines.vllm.texts import classify
from tuner.loadgen.result import read_records
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.testing.engine import EngineContract
from tuner.trial.pipeline import run_trial
from tuner.workloads.presets import load_preset
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.traffic import Traffic

NEVER = threading.Event()
WORKLOAD = ClosedLoop(max_concurrency=4, num_prompts=12, input_len=64, output_len=16)
NO_CACHE = ("--gpu-memory-utilization", "0.14", "--max-num-seqs", "16")


def spec(
    folder: Path, *argv: str, workload: SingleWorkload = WORKLOAD, limits: Limits | None = None, number: int = 3
) -> TrialSpec:
    launch = LaunchSpec(ModelRef(SMALL, SMALL, SMALL), argv, ("--seed", "0"), {"OWN": "a b"})
    return TrialSpec(
        "s", number, 0, 1, TrialKind.SEARCH, {}, launch, workload, 2, folder / "artifacts", limits or Limits()
    )


@pytest.fixture
def engine() -> SimulatedEngine:
    return SimulatedEngine(hardware_named("t4"), "0.15.1", frozenset({"flashinfer", "arctic_inference"}))


class TestContract(EngineContract):
    @pytest.fixture
    def good_spec(self, tmp_path: Path) -> TrialSpec:
        return spec(tmp_path, "--max-num-seqs", "32")

    @pytest.fixture
    def failing_spec(self, tmp_path: Path) -> TrialSpec:
        return spec(tmp_path, *NO_CACHE)


def test_results_are_marked_as_simulated(engine: SimulatedEngine, tmp_path: Path) -> None:
    info = engine.info()
    assert (info.version, info.executable, info.provenance) == ("0.15.1", None, Provenance.SIMULATED)
    assert {"--max-num-seqs", "--speculative-config", "--no-enable-prefix-caching"} <= (info.flags or set())
    outcome = run_trial(engine, spec(tmp_path), NEVER, worker="w0", device="Tesla T4")
    assert outcome.provenance is Provenance.SIMULATED
    assert (tmp_path / "artifacts" / "server.log").read_text().startswith(LOG_BANNER)
    assert json.loads((tmp_path / "artifacts" / "bench-0.json").read_text())["simulated"] is True


def test_a_trial_takes_virtual_time_that_its_phases_account_for(engine: SimulatedEngine, tmp_path: Path) -> None:
    outcome = run_trial(engine, spec(tmp_path), NEVER, worker="w0", device="Tesla T4")
    assert outcome.timings["ready"] > 60
    assert outcome.timings["benchmark"] > 0.1
    assert outcome.timings["own"] == 0
    assert (outcome.ended_at - outcome.started_at).total_seconds() < 10


def test_a_cached_compilation_shortens_the_start_up(engine: SimulatedEngine, tmp_path: Path) -> None:
    def ready(*argv: str) -> float:
        return run_trial(engine, spec(tmp_path, *argv), NEVER, worker="w0", device="Tesla T4").timings["ready"]

    cold, warm, other = ready(), ready(), ready("--max-num-seqs", "64")
    assert warm < other < cold
    # the compilation's key has the number of sequences, but not gpu_memory_utilization
    assert ready("--gpu-memory-utilization", "0.8") == pytest.approx(warm)


@pytest.mark.parametrize(
    ("forked", "arguments", "measured"),
    [
        (False, [[]], 108),
        (False, [[], []], 64),
        (False, [[], ["--max-num-batched-tokens", "4096"]], 72),
        (True, [[]], 67),
        (True, [[], []], 18),
        (True, [[], ["--max-num-batched-tokens", "4096"]], 24),
        (True, [[], ["--api-server-count", "2"]], 18),
    ],
)
def test_start_ups_take_about_as_long_as_on_an_h200(
    forked: bool, arguments: list[list[str]], measured: float, tmp_path: Path
) -> None:
    card = replace(hardware_named("h200"), host_speed=0.6)
    engine = SimulatedEngine(card, "0.25.1", frozenset({"flashinfer"}), warm_start=forked)
    outcomes = [run_trial(engine, spec(tmp_path, *argv), NEVER, worker="w0", device="H200") for argv in arguments]
    assert outcomes[-1].timings["ready"] == pytest.approx(measured, rel=0.15)


def test_a_failed_start_has_vllms_message(engine: SimulatedEngine, tmp_path: Path) -> None:
    outcome = run_trial(engine, spec(tmp_path, *NO_CACHE), NEVER, worker="w0", device="Tesla T4")
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.phase) == (FailureKind.KV_CACHE_TOO_SMALL, Phase.READY)
    log = (tmp_path / "artifacts" / "server.log").read_text()
    assert classify(log, 1, Phase.READY).kind is FailureKind.KV_CACHE_TOO_SMALL


@pytest.mark.parametrize(
    ("card", "arguments", "fails"),
    [
        ("h200", ("--dtype", "float16", "--kv-cache-dtype", "fp8"), True),
        ("h200", ("--dtype", "float16", "--kv-cache-dtype", "fp8_e4m3", "--attention-backend", "FLASH_ATTN"), True),
        ("h200", ("--dtype", "float16", "--kv-cache-dtype", "fp8", "--attention-backend", "TRITON_ATTN"), False),
        ("h200", ("--kv-cache-dtype", "fp8"), False),
        ("h200", ("--dtype", "float16"), False),
        ("l4", ("--dtype", "float16", "--kv-cache-dtype", "fp8"), False),
    ],
)
def test_flash_attention_3_fails_in_float16_with_an_fp8_kv_cache(
    card: str, arguments: tuple[str, ...], fails: bool, tmp_path: Path
) -> None:
    """As three trials on H200s did (docs/reports/data/h200-7b.csv, h200-7b-12.csv, h200-7b-8.csv)."""
    engine = SimulatedEngine(hardware_named(card), "0.25.1", frozenset({"flashinfer"}))
    failure = run_trial(engine, spec(tmp_path, *arguments), NEVER, worker="w0", device=card).failure
    assert (failure is not None) is fails
    if failure is not None:
        assert (failure.kind, failure.culprit) == (FailureKind.ENGINE_CRASH, Culprit.CONFIGURATION)
        log = (tmp_path / "artifacts" / "server.log").read_text()
        assert classify(log, 1, Phase.READY).message == failure.message


def test_a_refused_configuration_fails_the_check(engine: SimulatedEngine, tmp_path: Path) -> None:
    failure = some(engine.check(spec(tmp_path, "--max-num-batched-tokens", "64", "--max-num-seqs", "128")))
    assert failure.kind is FailureKind.INVALID_CONFIGURATION
    assert failure.message == "max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128)."


def test_deadlines_hold_in_virtual_time(engine: SimulatedEngine, tmp_path: Path) -> None:
    late = run_trial(engine, spec(tmp_path, limits=Limits(startup_s=5)), NEVER, worker="w0", device="d")
    assert some(late.failure).kind is FailureKind.STARTUP_TIMEOUT
    long = run_trial(engine, spec(tmp_path, limits=Limits(benchmark_s=0.1)), NEVER, worker="w0", device="d")
    assert some(long.failure).kind is FailureKind.BENCHMARK_FAILED


def test_traffic_writes_a_record_of_every_request(engine: SimulatedEngine, tmp_path: Path) -> None:
    mixed = load_preset("mixed").workload
    assert isinstance(mixed, Traffic)
    workload = mixed.model_copy(update={"requests": 200, "timeout_s": 5.0})
    outcome = run_trial(engine, spec(tmp_path, workload=workload), NEVER, worker="w0", device="d")
    assert outcome.failure is None
    records = read_records(tmp_path / "artifacts" / "requests-0.jsonl.gz")
    assert [record.index for record in records] == list(range(200))
    assert {record.name for record in records} == {"siso", "silo", "liso", "lilo"}
    for record in records:
        assert record.completed == (record.output_tokens is not None)
        assert all(gap >= 0 for gap in record.gaps_s)
        assert record.end_s is None or record.end_s <= (record.due_s or 0) + 5.0 + 1e-9
    assert outcome.repeats[0].metrics["success_rate"] == sum(record.completed for record in records) / 200


SCRIPT = """
import json, sys, threading
from pathlib import Path
from tests.unit.engines.simulator.test_engine import spec
from search_spaces import hardware_named
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.simulator.engine import SimulatedEngine
from tuner.trial.pipeline import run_trial
engine = SimulatedEngine(hardware_named("t4"), "0.15.1", frozenset({"flashinfer", "arctic_inference"}))
arguments = ("--speculative-config", '{"method": "suffix"}', "--override-generation-config", '{"temperature": 0}')
for argv in ((), arguments):
    outcome = run_trial(engine, spec(Path(sys.argv[1]), *argv), threading.Event(), worker="w0", device="d")
    print(json.dumps([sorted(repeat.metrics.items()) for repeat in outcome.repeats]))
"""


def test_another_process_gives_the_same_metrics(tmp_path: Path) -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
        ).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1
    assert "output_throughput" in outputs.pop()


def test_trials_of_one_configuration_differ_by_noise(engine: SimulatedEngine, tmp_path: Path) -> None:
    throughputs = [
        run_trial(engine, spec(tmp_path, number=number), NEVER, worker="w0", device="d").metric("output_throughput")
        for number in range(12)
    ]
    values = [value for value in throughputs if value is not None]
    assert len({*values}) == 12
    # the parameter noise_share is 3 %
    assert 0.005 < (max(values) - min(values)) / min(values) < 0.25


def test_a_worker_of_two_gpus_serves_what_one_gpu_cannot(tmp_path: Path) -> None:
    def made(gpus: int) -> SimulatedEngine:
        return SimulatedEngine(hardware_named("t4"), "0.15.1", frozenset({"flashinfer"}), gpus=gpus)

    split = spec(tmp_path, "--tensor-parallel-size", "2")
    refused = some(made(1).check(split))
    assert refused.kind is FailureKind.INVALID_CONFIGURATION
    assert refused.message == "World size (2) is larger than the number of available GPUs (1) in this node"
    assert made(2).check(split) is None
    outcome = run_trial(made(2), split, NEVER, worker="w0", device="2 × Tesla T4")
    assert outcome.failure is None
    plain = run_trial(made(2), spec(tmp_path), NEVER, worker="w0", device="2 × Tesla T4")
    assert (some(outcome.server).kv_cache_tokens or 0) > 1.9 * (some(plain.server).kv_cache_tokens or 0)


def test_the_factory_gives_the_simulated_engine_its_gpus(tmp_path: Path) -> None:
    settings = EngineSettings("simulated", None, tmp_path, card=hardware_named("t4"), version="0.15.1", gpus=2)
    split = spec(tmp_path, "--tensor-parallel-size", "2")
    assert EngineFactory(settings)(0).check(split) is None
    assert EngineFactory(replace(settings, gpus=1))(0).check(split) is not None


def test_instances_are_simulated_with_gpus_of_their_own_or_shared(tmp_path: Path) -> None:
    """Two servers on two GPUs have the tokens of one each; on one GPU less than half, as both hold the model."""

    def tokens(gpus: int, *argv: str) -> float:
        engine = SimulatedEngine(hardware_named("t4"), "0.15.1", frozenset({"flashinfer"}), gpus=gpus)
        server = engine.launch(spec(tmp_path, *argv), Limits())
        server.wait_ready(NEVER)
        return some(server.facts().kv_cache_tokens)

    alone, two = tokens(1), ("--instances", "2")
    assert tokens(2, *two) == alone
    assert 0 < tokens(1, *two) < alone / 2
