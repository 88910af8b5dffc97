"""The engine contract on a fake of TensorRT-LLM's server, and what the engine adds to the contract."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from records.trials import FailureKind, Phase
from tests.contracts.program_engine_contract import LOAD, NEVER, ProgramEngineContract, started, trial_of, with_flags
from tests.tensorrt_llm_program import VERSION
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.tensorrt_llm.engine import TensorRtLlmEngine
from tuner.errors import TrialFailed
from tuner.specs import LaunchSpec, ModelRef, TrialSpec

FRACTION = "--config.kv_cache_config.free_gpu_memory_fraction"
K = FailureKind


@pytest.fixture
def engine(program: Path, tmp_path: Path) -> Iterator[TensorRtLlmEngine]:
    made = EngineFactory(EngineSettings("tensorrt-llm", str(program), tmp_path / "home"))(0)
    assert isinstance(made, TensorRtLlmEngine)
    yield made
    made.close()


@pytest.fixture
def good_spec(model: Path, tmp_path: Path) -> TrialSpec:
    reference = ModelRef(str(model), str(model), "made")
    words = ("--max_batch_size", "16", FRACTION, "0.85")
    launch = LaunchSpec(reference, words, ("--max_seq_len", "4096"), {"MADE": "1"})
    return trial_of(launch, tmp_path)


@pytest.mark.slow
class TestContract(ProgramEngineContract):
    dropped = ("TRTLLM_SERVER_DISABLE_GC", "TLLM_LOG_LEVEL")

    @pytest.fixture
    def failing_spec(self, good_spec: TrialSpec) -> TrialSpec:
        return with_flags(good_spec, FRACTION, "0.01")


def test_the_installation_has_version_flags_and_options(engine: TensorRtLlmEngine, tmp_path: Path) -> None:
    info = engine.info()
    assert (info.name, info.version) == ("tensorrt-llm", VERSION)
    assert info.flags is not None
    assert {"--max_batch_size", "--config", "--extra_llm_api_options", FRACTION, "--config.attn_backend"} <= info.flags
    assert {"--config.speculative_config.is_public_pool", "--config.cuda_graph_config"} <= info.flags
    assert not {"--max-num-seqs", "--max-batch-size", "--config.kv_cache_config.made_up"} & info.flags
    assert len(list((tmp_path / "home" / "tensorrt_llm").glob("flags-*.json"))) == 1


def test_what_no_server_can_get_is_refused_without_a_launch(engine: TensorRtLlmEngine, good_spec: TrialSpec) -> None:
    twice = ("--config.cuda_graph_config", "null", "--config.cuda_graph_config.enable_padding", "true")
    refused = {
        ("--max-num-seqs", "4"): "--max-num-seqs is not a flag of the installed TensorRT-LLM",
        ("--max_batch_size", "many"): "--max_batch_size: 'many' is not a whole number",
        ("--enable_chunked_prefill", "1"): "'1' is in the place of a flag",
        ("--config.attn_backend",): "--config.attn_backend: a value is missing",
        twice: "--config.cuda_graph_config.enable_padding: cuda_graph_config has a value of its own",
    }
    for flags, message in refused.items():
        failure = engine.check(with_flags(good_spec, *flags))
        assert failure is not None
        assert (failure.kind, failure.phase, failure.message) == (K.INVALID_CONFIGURATION, Phase.CHECK, message)
    assert engine.check(with_flags(good_spec, "--config.kv_cache_config.dtype", "fp8")) is None


def test_options_are_a_file_of_the_trial_and_words_of_the_record(
    engine: TensorRtLlmEngine, good_spec: TrialSpec
) -> None:
    drafts = ("--config.speculative_config.decoding_type", "NGram", "--config.speculative_config.max_draft_len=8")
    spec = with_flags(good_spec, *drafts, "--config.cuda_graph_config", "null", FRACTION, "0.85")
    with started(engine, spec) as server:
        pass
    options = spec.artifacts / "options.yaml"
    assert yaml.safe_load(options.read_text(encoding="utf-8")) == {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "speculative_config": {"decoding_type": "NGram", "max_draft_len": 8},
        "cuda_graph_config": None,
        "kv_cache_config": {"free_gpu_memory_fraction": 0.85},
    }
    line = (spec.artifacts / "command.txt").read_text(encoding="utf-8")
    assert f"--extra_llm_api_options {shlex.quote(str(options))}" in line
    assert "--config." not in line
    assert set(drafts) < set(server.argv)
    assert str(options) not in server.argv


def test_facts_are_those_of_the_log_and_the_metrics(engine: TensorRtLlmEngine, good_spec: TrialSpec) -> None:
    with started(engine, good_spec) as server:
        server.benchmark(LOAD, 0, NEVER)
        facts = server.facts()
    assert (facts.kv_cache_tokens, facts.kv_cache_gib, facts.weights_gib) == (4096, 0.04, 0.98)
    assert (facts.prefix_hit_rate, facts.queue_time_mean_s) == (0.0, 0.5)
    assert (facts.preemptions, facts.spec_acceptance_rate, facts.attention_backend) == (None, None, None)


@pytest.mark.parametrize(
    ("flags", "kind", "message"),
    [
        (("--config.made_up", "0"), K.INVALID_CONFIGURATION, "made_up"),
        (("--backend", "none"), K.INVALID_CONFIGURATION, "Error: Invalid value for '--backend': 'none' is not one of"),
        (("--max_beam_width", "9"), K.SERVER_KILLED, "killed from outside"),
    ],
)
def test_a_start_that_fails_has_its_type(
    engine: TensorRtLlmEngine, good_spec: TrialSpec, flags: tuple[str, ...], kind: FailureKind, message: str
) -> None:
    with pytest.raises(TrialFailed) as caught, started(engine, with_flags(good_spec, *flags)):
        pass
    assert (caught.value.failure.kind, caught.value.failure.phase) == (kind, Phase.READY)
    assert message in caught.value.failure.message


def test_prompts_that_are_too_long_for_a_step_are_named(engine: TensorRtLlmEngine, good_spec: TrialSpec) -> None:
    short = with_flags(good_spec, "--max_num_tokens", "20")
    with started(engine, short) as server, pytest.raises(TrialFailed) as caught:
        server.warm_up(LOAD, NEVER)
    failure = caught.value.failure
    rule = "The sum of prompt length (24.0), query length (0) should not exceed max_num_tokens (20)"
    assert (failure.kind, failure.phase) == (K.KV_CACHE_TOO_SMALL, Phase.WARMUP)
    assert failure.message == f"none of 4 requests succeeded: {rule}"
