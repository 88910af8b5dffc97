"""Advice for defaults that fail, from the server's own words; the texts are those of vLLM 0.15 to 0.32 and SGLang."""

from __future__ import annotations

import pytest

from records.trials import Failure, FailureKind, Phase
from search_spaces import Context, ResolvedSpace, hardware_named, known_models, load_space
from tuner.engines.sglang.engine import classify
from tuner.results.what_works import asked, what_works

ONE_REQUEST = (
    "ValueError: To serve at least one request with the model's max seq len (32768), (1.75 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.60 GiB). Based on the available memory, the estimated "
    "maximum model length is {}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
    "initializing the engine."
)
OLD = (
    "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV "
    "cache (7344). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
NO_BLOCKS = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
    "the engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
)
SAMPLER = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try lowering "
    "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
)
MAMBA = (
    "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (79). Each decode sequence requires one Mamba "
    "cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most 79 or increase "
    "gpu_memory_utilization."
)
ON_A_CPU = (
    "ValueError: Available memory on node 0 (14.1/15.59 GiB) on kv cache allocation is less than requested memory for "
    "kv (900.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other "
    "processes."
)
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 22.00 GiB"
)
SGLANG_LOW = (
    "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.01. Raise "
    "--mem-fraction-static above 0.013 (minimum viable = 1 - available/pre = 0.0129)."
)
SGLANG_GRAPHS = """[2026-11-26 07:41:42] Scheduler hit an exception: Traceback (most recent call last):
  File "/site/sglang/srt/model_executor/cuda_graph_runner.py", line 360, in __init__
Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.
Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
2. set --cuda-graph-max-bs to a smaller value (e.g., 16)
3. disable torch compile by not using --enable-torch-compile
4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)
Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose
"""
SGLANG_NO_MEMORY = (
    "Exception: Capture cuda graph failed: invalid argument. This is not an out-of-memory error, so lowering "
    "--mem-fraction-static or --cuda-graph-max-bs-decode will not help."
)
UNCHUNKED = (
    "max_num_batched_tokens (2048) is smaller than max_model_len (4096). Please increase max_num_batched_tokens or "
    "decrease max_model_len."
)


def failed(text: str, kind: FailureKind = FailureKind.KV_CACHE_TOO_SMALL) -> Failure:
    return Failure(kind, Phase.READY, text)


def space(name: str = "vllm") -> ResolvedSpace:
    model = known_models()["Qwen/Qwen2.5-7B-Instruct"]
    version = "0.32.0" if name == "vllm" else "0.5.23"
    return load_space(name).resolve(Context(hardware_named("l4"), model=model, engine_version=version))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ONE_REQUEST.format(11232), "a lower max_model_len (at most 11,232) or a higher gpu_memory_utilization"),
        (OLD, "a lower max_model_len (at most 7,344) or a higher gpu_memory_utilization"),
        (NO_BLOCKS, "a higher gpu_memory_utilization"),
        (SAMPLER, "a lower max_num_seqs (at most 128) or a lower gpu_memory_utilization"),
        (MAMBA, "a lower max_num_seqs (at most 79) or a higher gpu_memory_utilization"),
        (ON_A_CPU, "a lower kv_cache_memory_bytes or a lower VLLM_CPU_KVCACHE_SPACE"),
        (SGLANG_LOW, "a higher mem_fraction_static (above 0.013)"),
        (SGLANG_NO_MEMORY, ""),
        (SGLANG_GRAPHS, "a lower mem_fraction_static or a lower cuda_graph_max_bs"),
        (UNCHUNKED, "a higher max_num_batched_tokens or a lower max_model_len"),
        (TORCH, ""),
        # as https://github.com/vllm-project/vllm/issues/49064 has it
        (
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (969).",
            "a lower max_num_seqs (at most 969)",
        ),
    ],
)
def test_what_a_message_asks_for(text: str, expected: str) -> None:
    assert asked(failed(text)) == expected


@pytest.mark.parametrize(
    ("text", "config"),
    [
        (ONE_REQUEST.format(11232), {"max_model_len": 8192}),
        (ONE_REQUEST.format(100), {"gpu_memory_utilization": 0.95}),
        (NO_BLOCKS, {"gpu_memory_utilization": 0.95}),
        (SAMPLER, {"max_num_seqs": 128}),
        (MAMBA, {"max_num_seqs": 79}),
    ],
)
def test_the_example_is_a_configuration_of_the_space(text: str, config: dict[str, float]) -> None:
    assert what_works(failed(text), space()) == (f"the server asks for {asked(failed(text))}", config)


def test_a_message_that_was_cut_is_completed_by_its_evidence() -> None:
    whole = ONE_REQUEST.format(11232)
    failure = Failure(FailureKind.KV_CACHE_TOO_SMALL, Phase.READY, whole[:200] + "…", whole)
    assert what_works(failure, space())[1] == {"max_model_len": 8192}


def test_without_a_flag_in_the_message_a_step_gets_fewer_requests_and_tokens() -> None:
    told, config = what_works(failed(TORCH, FailureKind.OUT_OF_MEMORY_STARTUP), space())
    assert told == "the server lacks memory, and its message names no flag"
    assert config == {"max_num_seqs": 64, "max_num_batched_tokens": 512}


def test_another_engine_gets_its_own_flags() -> None:
    failure = classify(SGLANG_GRAPHS, -9, Phase.READY)
    assert failure.kind is FailureKind.OUT_OF_MEMORY_STARTUP
    told, config = what_works(failure, space("sglang"))
    assert told == "the server asks for a lower mem_fraction_static or a lower cuda_graph_max_bs"
    assert "max_model_len" not in config


def test_a_failure_without_a_lack_of_memory_gets_no_example() -> None:
    unknown = failed("error: unrecognized arguments: --x", FailureKind.INVALID_CONFIGURATION)
    assert what_works(unknown, space()) == ("give a configuration that works", {})
