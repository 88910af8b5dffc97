"""TensorRT-LLM as an engine: its installation, options, command, and failures."""

import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from records.trials import FailureKind, Phase, ServerFacts
from search_spaces.yaml_file import plain_yaml
from tests.contracts.program_engine_contract import LOAD, NEVER, ProgramEngineContract, started, trial_of, with_flags
from tests.tensorrt_llm_program import VERSION
from tuner.engines.base import EngineSettings
from tuner.engines.command_line import check_server_arguments
from tuner.engines.factory import EngineFactory
from tuner.engines.server.metrics import parse_metrics, with_benchmark_metrics
from tuner.engines.tensorrt_llm.engine import (
    METRICS,
    TOO_LONG,
    TensorRtLlmEngine,
    classify,
    facts_from_log,
    installation,
    listed_name,
    token_tools,
)
from tuner.engines.tensorrt_llm.options import check_options, split_options
from tuner.errors import SettingError, TrialFailed, UserError
from tuner.processes.records import ProcessRecords
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
    refused = {
        ("--max_batch_size", "many"): "--max_batch_size: 'many' is not a whole number",
        ("--config.attn_backend",): "--config.attn_backend: a value is missing",
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


def test_the_installation_is_that_of_the_script_s_python(program: Path, tmp_path: Path) -> None:
    found = installation(program)
    python = program.with_name("python")
    assert (found.executable, found.python, found.version) == (program, python, VERSION)
    assert replace(found, python=Path("/bin/false"), version="0").flags(tmp_path) is None


def test_another_program_and_a_python_without_the_package_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"/bin/true is not the script that TensorRT-LLM installs; name the trtllm-serve"
    ):
        installation(Path("/bin/true"))
    script = tmp_path / "trtllm-serve"
    script.write_text(f"#!{sys.executable}\nfrom tensorrt_llm.commands.serve import main\n", encoding="utf-8")
    with pytest.raises(UserError, match="has no TensorRT-LLM; name the trtllm-serve of its environment"):
        installation(script)


def test_a_folder_is_listed_by_its_name_and_a_hub_name_as_it_is(model: Path) -> None:
    assert listed_name(f"{model}/") == "model"
    assert listed_name("Qwen/Qwen2.5-0.5B") == "Qwen/Qwen2.5-0.5B"


def test_prompts_are_ordinary_tokens_and_a_text_that_cannot_be_tokenized_is_a_failure(
    model: Path, tmp_path: Path
) -> None:
    tools = token_tools(str(model), ProcessRecords(tmp_path / "records"))
    assert tools._tokens == [number for number in range(40) if number != 3]
    (model / "tokenizer.json").unlink()
    plan = tmp_path / "plan.json"
    plan.write_text('{"requests": [{"shared": [], "prompt": "a text"}]}', encoding="utf-8")
    with pytest.raises(TrialFailed) as caught:
        tools.prompts(plan, tmp_path / "log")
    assert caught.value.failure.kind == "environment_broken"
    assert "the user's prompts cannot be tokenized: there is no tokenizer.json" in caught.value.failure.message


ENGINE = "tensorrt-llm"


def test_words_become_nested_options_of_their_types_and_the_last_value_counts() -> None:
    words = ("--max_batch_size", "8", "--config.a.b", "fp8", "--config.a.c=0.5", "--flag", "--config.a.b", "8")
    more = ("--config.on", "true", "--config.none", "null", "--config.sizes", "[1, 2]", "--config.shift", "-1")
    plain, options = split_options((*words, *more))
    assert plain == ("--max_batch_size", "8", "--flag")
    assert options == {"a": {"b": 8, "c": 0.5}, "on": True, "none": None, "sizes": [1, 2], "shift": -1}
    assert yaml.safe_load(plain_yaml(options)) == options
    assert list(options) == ["a", "on", "none", "sizes", "shift"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--config.a",), "--config.a: a value is missing"),
        (("--config.a", "--config.b", "1"), "--config.a: a value is missing"),
        (("--config.a", "[1"), "--config.a: '[1' is not a value in YAML"),
        (("--config.a", "1", "--config.a.b", "1"), "--config.a.b: a has a value of its own"),
        (("--config.a.b", "1", "--config.a", "null"), "--config.a: options within a are given, too"),
        (("--config.a..b", "1"), "--config.a..b: a key is empty"),
        (("--config.", "1"), "--config.: a key is empty"),
    ],
)
def test_what_no_file_can_hold_is_refused(words: tuple[str, ...], rule: str) -> None:
    with pytest.raises(SettingError, match=r"give it as --config\.KEY VALUE") as caught:
        check_options(words)
    assert f"{caught.value.value}: {caught.value.rule}" == rule


def test_a_secret_in_an_option_is_refused_and_in_a_flag_is_not() -> None:
    check_options(("--custom", "${HF_TOKEN}"))
    with pytest.raises(SettingError, match="an option is written to a file, and a secret is not"):
        check_options(("--config.a", "${HF_TOKEN}"))


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--config", "give each option as --config.KEY VALUE, such as --config.kv_cache_config.dtype fp8"),
        ("--extra_llm_api_options", "give each option as --config.KEY VALUE"),
        ("--config.return_perf_metrics", "leave it out"),
        ("--backend", "leave it out"),
        ("--tp_size", "leave it out: a trial of TensorRT-LLM has one GPU"),
    ],
)
def test_a_flag_that_the_tuner_sets_is_refused_with_a_remedy(flag: str, remedy: str) -> None:
    for words in ((flag, "x"), (f"{flag}=x",)):
        with pytest.raises(SettingError) as caught:
            check_server_arguments(words, ENGINE)
        assert caught.value.value == flag
        assert remedy in str(caught.value)
    check_server_arguments(("--config.kv_cache_config.dtype", "fp8", "--max_seq_len", "4096"), ENGINE)


WORKER = (
    "[11/26/2026-07:40:47] [TRT-LLM] [E] Executor worker initialization error: Traceback (most recent call last):\n"
)
CONSEQUENCE = "\n\nTraceback (most recent call last):\n  File x\nRuntimeError: Executor worker returned error\n"
USAGE = "Usage: trtllm-serve serve [OPTIONS] MODEL\nTry 'trtllm-serve serve --help' for help.\n\n"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n\nThe above exception was the "
            "direct cause of the following exception:\n\nTraceback (most recent call last):\n  File x\n"
            "RuntimeError: Executor creation failed due to insufficient GPU memory.",
            *(K.OUT_OF_MEMORY_STARTUP, "Executor creation failed due to insufficient GPU memory"),
        ),
        ("torch.OutOfMemoryError: CUDA out of memory.", K.OUT_OF_MEMORY_STARTUP, "CUDA out of memory"),
        (
            "AssertionError: Impossible to fit in any sequence in kvCache",
            *(K.KV_CACHE_TOO_SMALL, "Impossible to fit in any sequence in kvCache"),
        ),
        ("RuntimeError: No kernel for this shape", K.ENGINE_CRASH, "No kernel for this shape"),
        ("ValueError: max_draft_len must be > 0 for NGram", K.INVALID_CONFIGURATION, "must be > 0 for NGram"),
        ("ValueError: Unknown architecture for AutoModelForCausalLM: Nova9", K.ENVIRONMENT_BROKEN, "Nova9"),
        (
            "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, pool): out of memory (x:127)",
            *(K.OUT_OF_MEMORY_STARTUP, "cudaMallocAsync"),
        ),
        ("ModuleNotFoundError: No module named 'tensorrt_llm'", K.ENVIRONMENT_BROKEN, "No module named"),
    ],
)
def test_the_traceback_of_the_worker_is_the_cause(error: str, kind: FailureKind, message: str) -> None:
    failure = classify(f"{WORKER}  File x\n{error}{CONSEQUENCE}", 1, Phase.READY)
    assert failure.kind is kind
    assert message in failure.message
    assert failure.exit_code == 1


@pytest.mark.parametrize(
    ("log", "code", "kind", "message"),
    [
        (f"{USAGE}Error: No such option: --nope", 2, K.INVALID_CONFIGURATION, "Error: No such option: --nope"),
        (
            f"{USAGE}Error: Invalid value for '--port': 'x' is not a valid integer.",
            *(2, K.INVALID_CONFIGURATION, "Error: Invalid value for '--port': 'x' is not a valid integer."),
        ),
        (
            "[09/16/2025-03:59:59] [TRT-LLM] [E] Failed to parse the arguments for the LLM constructor: _TrtLLM got "
            "invalid argument: made_up\nTraceback (most recent call last):\n  File x\n"
            "ValueError: _TrtLLM got invalid argument: made_up\n",
            *(1, K.INVALID_CONFIGURATION, "got invalid argument: made_up"),
        ),
        (
            "Traceback (most recent call last):\n  File x\nOSError: [Errno 98] Address already in use\n\nDuring "
            "handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
            "  File x\nRuntimeError: Failed to bind socket to 127.0.0.1:8000: [Errno 98] Address already in use\n",
            *(1, K.PORT_TAKEN, "another program took the port"),
        ),
        (
            "Traceback (most recent call last):\n  File x\nValueError: No GPU devices found on the node\n",
            *(1, K.ENVIRONMENT_BROKEN, "No GPU devices found on the node"),
        ),
        (
            "[07/22/2025-05:45:38] [TRT-LLM] [E] Failed to initialize executor on rank 0: CUDA out of memory. Tried to "
            f"allocate 136.00 MiB.{CONSEQUENCE}",
            *(1, K.OUT_OF_MEMORY_STARTUP, "CUDA out of memory"),
        ),
        (
            "[07/07/2026-03:31:36] [TRT-LLM] [E] [executor] ValueError: No GPU devices found on the node\n",
            *(1, K.ENVIRONMENT_BROKEN, "ValueError: No GPU devices found on the node"),
        ),
    ],
)
def test_an_error_before_the_worker_has_its_type(log: str, code: int, kind: FailureKind, message: str) -> None:
    failure = classify(log, code, Phase.READY)
    assert failure.kind is kind
    assert message in failure.message


def test_a_server_that_was_killed_in_silence_was_killed_from_outside() -> None:
    assert classify("INFO:     Application startup complete.\n", -9, Phase.BENCHMARK).kind is K.SERVER_KILLED


TOKENS = "The sum of prompt length (9351.0), query length (0) should not exceed max_num_tokens (8192)"
LENGTH = "The sum of prompt length (4000) and query length (0) max_tokens (20) should not exceed max_seq_len (4010)"


@pytest.mark.parametrize("problem", [TOKENS, LENGTH])
def test_a_refusal_for_the_length_is_told_from_others(problem: str) -> None:
    found = TOO_LONG.search(f'HTTP 400: {{"object":"error","message":"{problem}","code":400}}')
    assert found is not None
    assert found[0] == problem
    assert TOO_LONG.search("HTTP 400: bad") is None


def test_the_facts_of_a_start_are_those_of_the_last_allocation() -> None:
    log = (
        "[12/20/2025-04:21:50] [TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage "
        "profiling: 63.52 GiB\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.54 GiB for max tokens in paged KV cache (16576).\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 68.69 GiB for max tokens in paged KV cache (643136).\n"
    )
    assert facts_from_log(log) == ServerFacts(kv_cache_tokens=643136, kv_cache_gib=68.69, weights_gib=63.52)
    assert facts_from_log("") == ServerFacts()


def test_metrics_are_differences_and_what_a_version_lacks_is_none() -> None:
    labels = '{engine_type="undefined",model_name="undefined"}'
    page = "\n".join(
        [
            f"trtllm_kv_cache_reused_blocks_total{labels} 30.0",
            f"trtllm_kv_cache_missed_blocks_total{labels} 90.0",
            f"trtllm_request_queue_time_seconds_sum{labels} 3.0",
            f"trtllm_request_queue_time_seconds_count{labels} 6.0",
            f"trtllm_spec_decode_num_draft_tokens_total{labels} 40.0",
            f"trtllm_spec_decode_num_accepted_tokens_total{labels} 10.0",
            'trtllm_kv_cache_utilization{pid="1"} 0.25',
            'trtllm_kv_cache_utilization{pid="2"} 0.5',
        ]
    )
    after = parse_metrics(page, METRICS)
    assert after["trtllm_kv_cache_utilization"] == 0.5
    before = {"trtllm_kv_cache_reused_blocks_total": 10.0, "trtllm_kv_cache_missed_blocks_total": 30.0}
    facts = with_benchmark_metrics(ServerFacts(), before, after, [0.25, 0.75], METRICS)
    assert facts.prefix_hit_rate == 20 / 80
    assert (facts.queue_time_mean_s, facts.spec_acceptance_rate) == (0.5, 0.25)
    assert (facts.kv_usage_max, facts.kv_usage_mean) == (0.75, 0.5)
    assert (facts.preemptions, facts.spec_tokens_per_draft) == (None, None)
    assert with_benchmark_metrics(ServerFacts(), {}, {}, [], METRICS) == ServerFacts()


def test_blocks_that_were_never_reused_are_none_of_all() -> None:
    after = {"trtllm_kv_cache_missed_blocks_total": 8.0}
    assert with_benchmark_metrics(ServerFacts(), {}, after, [], METRICS).prefix_hit_rate == 0.0
