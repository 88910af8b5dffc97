"""Read what vLLM 0.15 to 0.32 writes: the failures and facts of its log, and the names of its metrics.

Other servers with an OpenAI-compatible API have metrics of the same names.
"""

from __future__ import annotations

import math
import re
from functools import partial

from records.trials import FailureKind, ServerFacts
from tuner.engines.server import failures
from tuner.engines.server.causes import CAUSES, LOADED, MISSING_PACKAGE, MODEL_VERSION, STARTING, broken, rows
from tuner.engines.server.failures import CONSEQUENCES, LogTexts
from tuner.engines.server.metrics import MetricNames

METRICS = MetricNames(
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    kv_usage="vllm:kv_cache_usage_perc",
    preemptions="vllm:num_preemptions_total",
    prefix_hits="vllm:prefix_cache_hits_total",
    prefix_queries="vllm:prefix_cache_queries_total",
    offloaded_hits="vllm:external_prefix_cache_hits_total",
    queue_sum="vllm:request_queue_time_seconds_sum",
    queue_count="vllm:request_queue_time_seconds_count",
    drafts="vllm:spec_decode_num_drafts_total",
    draft_tokens="vllm:spec_decode_num_draft_tokens_total",
    accepted="vllm:spec_decode_num_accepted_tokens_total",
)

REQUEST_HISTOGRAMS = {
    "prompt": "vllm:request_prompt_tokens",
    "answer": "vllm:request_generation_tokens",
    "TTFT": "vllm:time_to_first_token_seconds",
    "TPOT": "vllm:request_time_per_output_token_seconds",
}
"""Histograms of requests: tokens of prompt and answer, and latencies in seconds."""

_OUT_OF_MEMORY = (
    r"is less than desired CPU memory",
    r"less than requested memory for kv",
)

OWN_CAUSES = (
    *rows(
        FailureKind.GPU_BUSY,
        r"Free memory on device .* is less than|Externally held weights on device",
        r"Error in memory profiling\. Initial free memory",
    ),
    *rows(
        FailureKind.KV_CACHE_TOO_SMALL,
        r"To serve at least one request with the models?'s max seq len",
        r"No available memory for the cache blocks",
        r"larger than the maximum number of tokens that can be stored in KV cache",
        r"exceeds available Mamba cache blocks|Cannot auto-fit max_model_len",
    ),
    *rows(
        FailureKind.OUT_OF_MEMORY_STARTUP,
        r"Insufficient space in \S+ for CPU KV offload",
        *_OUT_OF_MEMORY,
        phases=STARTING,
    ),
    *rows(FailureKind.OUT_OF_MEMORY_LOAD, *_OUT_OF_MEMORY, phases=LOADED),
    *rows(FailureKind.STARTUP_TIMEOUT, r"Timed out waiting for (?:new )?engine core processes to start"),
    *broken(r"No package metadata was found for vllm|No module named '?vllm", step=MISSING_PACKAGE),
    *broken(
        r"has no vLLM implementation|The Transformers implementation of .* is not compatible with vLLM",
        step=MODEL_VERSION,
    ),
)
"""For each causal line of a log, the first matching row applies; the shared rows follow."""

TEXTS = LogTexts(
    causes=(*OWN_CAUSES, *CAUSES),
    consequences=CONSEQUENCES,
    died=re.compile(r"died unexpectedly|EngineDeadError|Engine core initialization failed|Failed core proc"),
    prefix=re.compile(
        r"^(?:\([^()]*pid=\d+[^()]*\)\s)?(?:\[rank\d+\]:\s?)?"  # Ray adds an address, PyTorch the rank
        r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
        r"(?:(?:\s+\|)+\s)?"  # of a group of exceptions
    ),
    anchor=re.compile(r"failed to start|encountered a fatal error|hit an exception"),
)

classify = partial(failures.classify, texts=TEXTS)
"""Returns the typed failure of a server, or of its configuration check, that ended; see `failures.classify`."""

COMPILES = re.compile(r"(?:compilation|autotun\w*) during inference")
"""vLLM's warning (`utils/jit_monitor.py`), once for each kernel of a process."""

_TOO_MANY_TOKENS = 2**63
"""The database stores smaller numbers."""

_NUMBER = r"([\d,]+(?:\.\d+)?)"
_KV_TOKENS = re.compile(rf"\b(?:GPU|CPU|HPU|XPU|TPU) KV cache size: {_NUMBER} tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x")
_KV_GIB = re.compile(rf"Available KV cache memory: {_NUMBER} GiB|Explicitly set \({_NUMBER}/[\d.]+\) GiB for KV cache")
_WEIGHTS = re.compile(rf"(?:Model loading|Loading model weights) took {_NUMBER} Gi?B")
_GRAPHS = re.compile(rf"Graph capturing finished in {_NUMBER} secs?, took {_NUMBER} GiB")
_COMPILE = re.compile(rf"torch\.compile (?:takes|took) {_NUMBER} s")
_INIT = re.compile(rf"init engine .* took {_NUMBER} s")
_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend(?: out of|\.|$)", re.MULTILINE)
_UNTUNED = re.compile(r"Using default .* config\. Performance might be sub-optimal! Config file not found at (.+)")
_SETTINGS_FILE = re.compile(r"[^/\s]+\.json")


def facts_from_log(text: str) -> ServerFacts:
    """Return the facts of a log; None for each that it lacks."""
    graphs = _GRAPHS.search(text)
    backend = _BACKEND.search(text)
    tokens = _last(_KV_TOKENS, text)
    return ServerFacts(
        kv_cache_tokens=None if tokens is None or tokens >= _TOO_MANY_TOKENS else round(tokens),
        kv_cache_gib=_last(_KV_GIB, text),
        max_concurrency=_last(_CONCURRENCY, text),
        weights_gib=_last(_WEIGHTS, text),
        graph_capture_s=_value(graphs[1]) if graphs else None,
        graph_gib=_value(graphs[2]) if graphs else None,
        compile_s=_last(_COMPILE, text),
        engine_init_s=_last(_INIT, text),
        attention_backend=backend[1] if backend else None,
        untuned_kernels=_untuned(text),
    )


def _untuned(text: str) -> str | None:
    """Return the names of the missing files of tuned kernels; vLLM looks for one in several folders, on every GPU."""
    names = [name for found in _UNTUNED.finditer(text) for name in _SETTINGS_FILE.findall(found[1])]
    return "; ".join(dict.fromkeys(names)) or None


def _last(pattern: re.Pattern[str], text: str) -> float | None:
    """Return the number of the last match; several engines log the same value."""
    found = list(pattern.finditer(text))
    return _value(next(group for group in found[-1].groups() if group is not None)) if found else None


def _value(text: str) -> float | None:
    """Return the number; None if it is none or not finite."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
