"""The fake's throughput and latency as a function of the flags, in closed form. Invented, not measured.

Let b = min(users, max_num_seqs) be the batch. One decode step takes, in ms,

    step = (2.0 with CUDA graphs, else 9.0) + 0.02·b,
           ×0.8 with any --quantization, ×1.05 with --no-async-scheduling,
           ×(1 + 0.01·|log2(block_size/32)|), ×0.97 with --stream-interval above 1,
           ×0.7 / ×1.5 with --speculative-config at temperature 0 / at any other,

    prefill = users·input_len / (10·sqrt(max_num_batched_tokens)) ms
    tpot = step                      ttft = prefill + (users/b - 1)·output_len·step/2
    output_throughput = 1000·b / (step·(1 + prefill/(users/b·output_len·step)))   in tok/s

Graphs are off with --enforce-eager, -O0 or cudagraph_mode NONE. With 50 users, 512 in and 512 out the best is more
sequences than users, graphs, quantization, block size 32 and many batched tokens.

Memory is 16 GiB: KV tokens = (16·gpu_memory_utilization - 2.5)·80000, twice that with an fp8 KV cache. Above 0.97 the
fake runs out of memory at start-up; with fewer KV tokens than max_model_len it says that the KV cache is too small.
"""

from __future__ import annotations

import json
import math
from typing import Any

DEFAULTS: dict[str, Any] = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "max_model_len": 32768,
    "block_size": 16,
    "gpu_memory_utilization": 0.92,
    "stream_interval": 1,
}
MEMORY_GIB = 16.0
OOM_ABOVE = 0.97


def number(flags: dict[str, Any], name: str) -> float:
    """Return a flag's number or its default."""
    value = flags.get(name)
    return float(DEFAULTS[name] if value is None else value)


def temperature(flags: dict[str, Any]) -> float:
    """Return the server's sampling temperature, 1.0 unless overridden."""
    return float(json.loads(flags.get("override_generation_config") or "{}").get("temperature", 1.0))


def kv_tokens(flags: dict[str, Any]) -> int:
    """Return the size of the KV cache in tokens."""
    tokens = (MEMORY_GIB * number(flags, "gpu_memory_utilization") - 2.5) * 80_000
    return int(tokens * (2 if str(flags.get("kv_cache_dtype")).startswith("fp8") else 1))


def graphs(flags: dict[str, Any]) -> bool:
    """Return whether CUDA graphs are on."""
    off = flags.get("enforce_eager") or str(flags.get("optimization_level")) == "0"
    return not off and "NONE" not in str(flags.get("compilation_config", ""))


def landscape(flags: dict[str, Any], users: int, input_len: int, output_len: int) -> dict[str, float]:
    """Return step_ms, ttft_ms, tpot_ms and output_throughput (tok/s) by the formulas above."""
    batch = min(users, number(flags, "max_num_seqs"))
    step = (2.0 if graphs(flags) else 9.0) + 0.02 * batch
    step *= 0.8 if flags.get("quantization") else 1.0
    step *= 1.05 if flags.get("async_scheduling") is False else 1.0
    step *= 1 + 0.01 * abs(math.log2(number(flags, "block_size") / 32))
    step *= 0.97 if number(flags, "stream_interval") > 1 else 1.0
    if flags.get("speculative_config"):
        step *= 0.7 if temperature(flags) == 0 else 1.5
    prefill = users * input_len / (10 * math.sqrt(number(flags, "max_num_batched_tokens")))
    waves = users / batch
    decode = waves * output_len * step
    return {
        "step_ms": step,
        "tpot_ms": step,
        "ttft_ms": prefill + (waves - 1) * output_len * step / 2,
        "output_throughput": 1000 * batch / (step * (1 + prefill / decode)),
    }
