"""SGLang as an engine: its installation, command, and failures."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from records.trials import FailureKind, Phase, ServerFacts
from tests.contracts.program_engine_contract import LOAD, NEVER, ProgramEngineContract, started, trial_of, with_flags
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.engines.server.failures import read_log
from tuner.engines.server.metrics import parse_metrics, with_benchmark_metrics
from tuner.engines.server.token_prompts import ordinary_tokens
from tuner.engines.sglang.engine import (
    METRICS,
    TOO_LONG,
    SglangEngine,
    classify,
    facts_from_log,
    installation,
    with_acceptance,
)
from tuner.errors import SettingError, TrialFailed, UserError
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


def test_what_the_parser_refuses_is_refused_without_a_launch(engine: SglangEngine, good_spec: TrialSpec) -> None:
    refused = {
        (
            "--sampling-backend",
            "vllm",
        ): "--sampling-backend: 'vllm' is not one of pytorch, intel_xpu, ascend, flashinfer",
        ("--page-size", "small"): "--page-size: 'small' is not a whole number",
        ("--disable-radix-cache", "1"): "'1' is in the place of a flag",
    }
    for flags, message in refused.items():
        failure = engine.check(with_flags(good_spec, *flags))
        assert failure is not None
        assert (failure.kind, failure.phase, failure.message) == (K.INVALID_CONFIGURATION, Phase.CHECK, message)
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


def test_the_installation_is_that_of_the_python(python: Path) -> None:
    found = installation(python)
    assert (found.executable, found.version, found.packages) == (python, "0.5.23", frozenset())


def test_a_python_without_sglang_and_a_program_that_is_none_are_refused() -> None:
    with pytest.raises(UserError, match="has no SGLang; name the Python that has SGLang"):
        installation(Path(sys.executable))
    with pytest.raises(UserError, match="does not answer as a Python"):
        installation(Path("/bin/false"))


def test_an_import_that_fails_leaves_the_flags_unknown(python: Path, tmp_path: Path) -> None:
    broken = installation(python)
    assert broken.flags(tmp_path) is not None
    assert broken.flags(tmp_path) == broken.flags(tmp_path)
    assert replace(broken, python=Path("/bin/false"), version="0").flags(tmp_path) is None


def test_ordinary_tokens_are_those_that_were_not_added(model: Path) -> None:
    assert ordinary_tokens(str(model)) == [number for number in range(40) if number != 3]


def test_the_tokens_of_a_list_are_its_places(tmp_path: Path) -> None:
    content = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]]}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert ordinary_tokens(str(tmp_path)) == [0, 1]


@pytest.mark.parametrize("content", ["", "[]", '{"model": {}}', '{"model": {"vocab": {}}}', '{"model": {"vocab": 3}}'])
def test_a_tokenizer_without_tokens_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(SettingError) as caught:
        ordinary_tokens(str(tmp_path))
    assert caught.value.field == "tokenizer"


LOGS = Path(__file__).parents[3] / "data" / "logs" / "sglang"

RECORDED = [
    ("unknown_flag", 2, K.INVALID_CONFIGURATION, "unrecognized arguments: --no-such-flag"),
    ("bad_choice", 2, K.INVALID_CONFIGURATION, "argument --attention-backend: invalid choice: 'nonsense'"),
    ("context_too_long", 1, K.INVALID_CONFIGURATION, "is greater than the derived context_length (32768)"),
    ("model_missing", 1, K.ENVIRONMENT_BROKEN, "HFValidationError: Repo id must use"),
    ("checkpoint_not_quantized", -9, K.INVALID_CONFIGURATION, "Cannot find the config file for awq"),
    ("memory_too_low", -9, K.KV_CACHE_TOO_SMALL, "leave no GPU memory for the KV cache under --mem-fraction-static"),
    ("memory_too_high", -9, K.OUT_OF_MEMORY_STARTUP, "CUBLAS_STATUS_ALLOC_FAILED"),
    ("port_taken", -9, K.PORT_TAKEN, "another program took the port"),
]


@pytest.mark.parametrize(("name", "code", "kind", "message"), RECORDED, ids=[name for name, *_ in RECORDED])
def test_a_recorded_log_has_its_type(name: str, code: int, kind: FailureKind, message: str) -> None:
    failure = classify(read_log(LOGS / f"{name}.log"), code, Phase.READY)
    assert failure.kind is kind
    assert message in failure.message
    assert failure.exit_code == code


def test_every_log_is_tested_and_described() -> None:
    logs = {path.stem for path in LOGS.glob("*.log")}
    assert logs == {name for name, *_ in RECORDED} | {"healthy_start", "two_gpus"}
    described = (LOGS / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(logs) if f"| `{name}` |" not in described] == []


def test_a_server_that_started_and_was_killed_was_killed_from_outside() -> None:
    assert classify(read_log(LOGS / "healthy_start.log"), -9, Phase.BENCHMARK).kind is K.SERVER_KILLED


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", K.KV_CACHE_TOO_SMALL),
        ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2 GiB", K.OUT_OF_MEMORY_STARTUP),
        ("Exception: Capture cuda graph failed: invalid argument", K.ENGINE_CRASH),
        ("RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).", K.SERVER_KILLED),
        ("RuntimeError: ninja exited with status 1", K.ENVIRONMENT_BROKEN),
        ("ModuleNotFoundError: No module named 'sgl_kernel'", K.ENVIRONMENT_BROKEN),
        ("AssertionError: res=<Response [502]>, res.text=''", K.ENVIRONMENT_BROKEN),
        ("AssertionError: page size must be 1", K.INVALID_CONFIGURATION),
        (
            "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. ",
            K.GPU_BUSY,
        ),
        ("RuntimeError: Decode out of memory. Try to lower your batch size.", K.OUT_OF_MEMORY_LOAD),
    ],
)
def test_a_traceback_has_its_type(error: str, kind: FailureKind) -> None:
    log = f"[2026-11-26 07:40:47 TP0] Scheduler hit an exception: Traceback (most recent call last):\n{error}\n\n"
    assert classify(log, -9, Phase.BENCHMARK if kind is K.OUT_OF_MEMORY_LOAD else Phase.READY).kind is kind


@pytest.mark.parametrize(
    ("name", "tokens", "kv", "weights", "graphs", "seconds"),
    [
        ("healthy_start", 10887379, 62.30 + 62.30, 0.98, 0.68 + 0.20, 4.61 + 4.16),
        (
            "two_gpus",
            952093,
            25.42 + 25.42,
            14.30,
            1.62 + 0.23,
            11.53 + 5.48,
        ),  # of one; the lines of both are mixed
    ],
)
def test_the_facts_of_a_start_are_those_of_its_log(
    name: str, tokens: int, kv: float, weights: float, graphs: float, seconds: float
) -> None:
    assert facts_from_log(read_log(LOGS / f"{name}.log")) == ServerFacts(
        kv_cache_tokens=tokens,
        kv_cache_gib=kv,
        max_concurrency=tokens / 32768,
        weights_gib=weights,
        graph_gib=graphs,
        graph_capture_s=seconds,
        attention_backend="fa3",
    )


def test_the_metrics_of_a_page_are_found_by_their_names() -> None:
    values = parse_metrics((LOGS / "metrics.txt").read_text(encoding="utf-8"), METRICS)
    assert (values[METRICS.running], values[METRICS.waiting], values["sglang:token_usage"]) == (0.0, 0.0, 0.0)
    assert values["sglang:prompt_tokens_total"] == 18 + 6
    facts = with_benchmark_metrics(
        with_acceptance(ServerFacts(), values), {"sglang:prompt_tokens_total": 18.0}, values, [0.1, 0.3], METRICS
    )
    assert (facts.prefix_hit_rate, facts.preemptions) == (0.0, 0.0)
    assert facts.queue_time_mean_s == pytest.approx(0.0021911909999516865 / 3)
    assert (facts.kv_usage_max, facts.kv_usage_mean) == (0.3, 0.2)
    assert (facts.spec_acceptance_rate, facts.spec_tokens_per_draft) == (None, None)


def test_the_acceptance_of_drafts_is_the_present_value() -> None:
    after = {"sglang:spec_accept_rate": 0.25, "sglang:spec_accept_length": 4.0}
    facts = with_acceptance(ServerFacts(), after)
    assert (facts.spec_acceptance_rate, facts.spec_tokens_per_draft) == (0.25, 3.0)


def test_a_refusal_for_the_length_is_told_from_others() -> None:
    refused = "Requested token count exceeds the model's maximum context length of 20 tokens. You requested 32"
    found = TOO_LONG.search(f"HTTP 400: {refused}")
    assert found is not None
    assert found[0] == refused.partition(".")[0]
    assert TOO_LONG.search("HTTP 400: bad") is None
