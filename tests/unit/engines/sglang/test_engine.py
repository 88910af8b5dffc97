"""The engine contract on a fake of SGLang's server, and what the engine adds to the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from records.trials import FailureKind, Phase
from tests.contracts.program_engine_contract import LOAD, NEVER, ProgramEngineContract, started, trial_of, with_flags
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.sglang.engine import SglangEngine
from tuner.errors import TrialFailed
from tuner.specs import LaunchSpec, ModelRef, TrialSpec

K = FailureKind


@pytest.fixture
def engine(python: Path, tmp_path: Path) -> Iterator[SglangEngine]:
    made = EngineFactory(EngineSettings("sglang", str(python), tmp_path / "home"))(0)
    assert isinstance(made, SglangEngine)
    yield made
    made.close()


@pytest.fixture
def good_spec(model: Path, tmp_path: Path) -> TrialSpec:
    reference = ModelRef(str(model), str(model), "made")
    launch = LaunchSpec(reference, ("--max-running-requests", "16"), ("--load-format", "dummy"), {"MADE": "1"})
    return trial_of(launch, tmp_path)


@pytest.mark.slow
class TestContract(ProgramEngineContract):
    dropped = ("SGLANG_USE_MODELSCOPE",)

    @pytest.fixture
    def failing_spec(self, good_spec: TrialSpec) -> TrialSpec:
        return with_flags(good_spec, "--mem-fraction-static", "0.01")


def test_the_installation_has_version_and_flags_of_its_own_parser(engine: SglangEngine, tmp_path: Path) -> None:
    info = engine.info()
    assert (info.name, info.version) == ("sglang", "0.5.23")
    assert info.flags is not None
    assert {"--mem-fraction-static", "--cuda-graph-max-bs-decode", "--model", "--model-path"} <= info.flags
    assert "--max-num-seqs" not in info.flags
    assert len(list((tmp_path / "home" / "sglang").glob("flags-*.json"))) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-num-seqs", "4"), "--max-num-seqs is not a flag of the installed SGLang"),
        (
            ("--sampling-backend", "vllm"),
            "--sampling-backend: 'vllm' is not one of pytorch, intel_xpu, ascend, flashinfer",
        ),
        (("--page-size", "small"), "--page-size: 'small' is not a whole number"),
        (("--disable-radix-cache", "1"), "'1' is in the place of a flag"),
        (("--mem-fraction-static",), "--mem-fraction-static: a value is missing"),
    ],
)
def test_what_the_parser_refuses_is_refused_without_a_launch(
    engine: SglangEngine, good_spec: TrialSpec, flags: tuple[str, ...], message: str
) -> None:
    refused = engine.check(with_flags(good_spec, *flags))
    assert refused is not None
    assert (refused.kind, refused.phase, refused.message) == (K.INVALID_CONFIGURATION, Phase.CHECK, message)
    assert engine.check(with_flags(good_spec, "--chunked-prefill-size", "-1")) is None


def test_facts_are_those_of_the_log_and_the_metrics(engine: SglangEngine, good_spec: TrialSpec) -> None:
    with started(engine, good_spec) as server:
        server.benchmark(LOAD, 0, NEVER)
        facts = server.facts()
    assert " -m sglang.launch_server --model-path " in (good_spec.artifacts / "command.txt").read_text()
    assert (facts.kv_cache_tokens, facts.max_concurrency) == (4096, 4096 / 32768)
    assert (facts.kv_cache_gib, facts.weights_gib, facts.graph_gib, facts.graph_capture_s) == (0.04, 0.98, 0.3, 1.25)
    assert facts.attention_backend == "fa3"
    assert (facts.prefix_hit_rate, facts.preemptions, facts.queue_time_mean_s) == (0.0, 0.0, 0.5)
    assert facts.spec_acceptance_rate is None


@pytest.mark.parametrize(
    ("flags", "kind", "message"),
    [
        (("--mem-fraction-static", "0.01"), K.KV_CACHE_TOO_SMALL, "Please try to increase --mem-fraction-static"),
        (("--cuda-graph-max-bs-decode", "4096"), K.OUT_OF_MEMORY_STARTUP, "Capture cuda graph failed: CUDA out of"),
        (("--schedule-conservativeness=-1",), K.INVALID_CONFIGURATION, "must be non-negative"),
        (("--random-seed", "9"), K.SERVER_KILLED, "killed from outside"),
    ],
)
def test_a_start_that_fails_has_its_type(
    engine: SglangEngine, good_spec: TrialSpec, flags: tuple[str, ...], kind: FailureKind, message: str
) -> None:
    with pytest.raises(TrialFailed) as caught, started(engine, with_flags(good_spec, *flags)):
        pass
    assert (caught.value.failure.kind, caught.value.failure.phase) == (kind, Phase.READY)
    assert message in caught.value.failure.message


def test_a_context_that_is_too_short_is_named(engine: SglangEngine, good_spec: TrialSpec) -> None:
    short = with_flags(good_spec, "--context-length", "20")
    with started(engine, short) as server, pytest.raises(TrialFailed) as caught:
        server.warm_up(LOAD, NEVER)
    failure = caught.value.failure
    rule = "The input (24 tokens) is longer than the model's context length (20 tokens)"
    assert (failure.kind, failure.phase) == (K.KV_CACHE_TOO_SMALL, Phase.WARMUP)
    assert failure.message == f"none of 4 requests succeeded: {rule}"
