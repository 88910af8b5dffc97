"""Read the facts that TensorRT-LLM logs while it starts, and its metrics.

The names and texts are those of its sources (docs/engines.md names the commits); none was seen on a server. What a
version does not report is None. The metrics of iterations are written when requests end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from storage.records import ServerFacts
from tuner.engines.server.metrics import Counters, StateMetrics, with_benchmark_metrics

PAGE = "/prometheus/metrics"
"""`/metrics` is a list of iterations in JSON, which each reader empties."""

RUNNING = "trtllm_num_requests_running"
WAITING = "trtllm_num_requests_waiting"
KV_USAGE = "trtllm_kv_cache_utilization"
REUSED = "trtllm_kv_cache_reused_blocks_total"
MISSED = "trtllm_kv_cache_missed_blocks_total"
QUEUE_SUM = "trtllm_request_queue_time_seconds_sum"
QUEUE_COUNT = "trtllm_request_queue_time_seconds_count"
DRAFT_TOKENS = "trtllm_spec_decode_num_draft_tokens_total"
ACCEPTED = "trtllm_spec_decode_num_accepted_tokens_total"

_LOOKED_UP = "looked up"
"""Blocks of prompts, reused or not; no metric of the page."""

COUNTERS = Counters("", REUSED, _LOOKED_UP, QUEUE_SUM, QUEUE_COUNT, "", DRAFT_TOKENS, ACCEPTED)
"""Preempted requests are not counted, nor are drafts, only their tokens."""

STATE = StateMetrics(
    *(RUNNING, WAITING, KV_USAGE, None),
    (RUNNING, WAITING, KV_USAGE, REUSED, MISSED, QUEUE_SUM, QUEUE_COUNT, DRAFT_TOKENS, ACCEPTED),
    page=PAGE,
)

_KV = re.compile(r"Allocated (\d+\.\d+) GiB for max tokens in paged KV cache \((\d+)\)")
_WEIGHTS = re.compile(
    r"Memory used after loading model weights \(inside torch\) in memory usage profiling: (\d+\.\d+) GiB"
)


def facts_from_log(text: str) -> ServerFacts:
    """Return the facts of a log; None for each that it lacks.

    A start allocates the KV cache twice: small for a measurement of memory, then as large as it stays.
    """
    caches, weights = _KV.findall(text), _WEIGHTS.search(text)
    size, tokens = caches[-1] if caches else (None, None)
    return ServerFacts(
        kv_cache_tokens=None if tokens is None else int(tokens),
        kv_cache_gib=None if size is None else float(size),
        weights_gib=None if weights is None else float(weights[1]),
    )


def with_metrics(
    facts: ServerFacts, before: Mapping[str, float], after: Mapping[str, float], usage: list[float]
) -> ServerFacts:
    """Return `facts` with the differences between two scrapes.

    A counter that was never raised is not on the page: without blocks that were looked up, none is known to be reused.
    """
    return with_benchmark_metrics(facts, _with_blocks(before), _with_blocks(after), usage, COUNTERS)


def _with_blocks(values: Mapping[str, float]) -> dict[str, float]:
    if REUSED not in values and MISSED not in values:
        return dict(values)
    reused, missed = values.get(REUSED, 0.0), values.get(MISSED, 0.0)
    return {**values, REUSED: reused, _LOOKED_UP: reused + missed}
