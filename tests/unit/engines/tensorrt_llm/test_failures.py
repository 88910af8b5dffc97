"""Texts of TensorRT-LLM's sources and of logs in its public issues have their types; no server was run."""

from __future__ import annotations

import pytest

from records.trials import FailureKind, Phase, ServerFacts
from tuner.engines.server.metrics import parse_metrics, with_benchmark_metrics
from tuner.engines.tensorrt_llm.engine import METRICS, TOO_LONG, classify, facts_from_log

K = FailureKind
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
