"""Read the facts that SGLang logs while it starts, and its metrics. The texts are those of 0.5.17 and 0.5.23."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from storage.records import ServerFacts
from tuner.engines.server.metrics import Counters, StateMetrics, with_benchmark_metrics

RUNNING = "sglang:num_running_reqs"
WAITING = "sglang:num_queue_reqs"
TOKEN_USAGE = "sglang:token_usage"
RETRACTED = "sglang:num_retracted_requests_total"
CACHED_TOKENS = "sglang:cached_tokens_total"
PROMPT_TOKENS = "sglang:prompt_tokens_total"
QUEUE_SUM = "sglang:queue_time_seconds_sum"
QUEUE_COUNT = "sglang:queue_time_seconds_count"
ACCEPT_RATE = "sglang:spec_accept_rate"
ACCEPT_LENGTH = "sglang:spec_accept_length"

COUNTERS = Counters(RETRACTED, CACHED_TOKENS, PROMPT_TOKENS, QUEUE_SUM, QUEUE_COUNT)
"""A request that is retracted gives up its place and is computed again, as one that vLLM preempts."""

STATE = StateMetrics(
    *(RUNNING, WAITING, TOKEN_USAGE, RETRACTED),
    (
        *(RUNNING, WAITING, TOKEN_USAGE, RETRACTED, CACHED_TOKENS, PROMPT_TOKENS),
        *(QUEUE_SUM, QUEUE_COUNT, ACCEPT_RATE, ACCEPT_LENGTH),
    ),
)

_GB = r"(\d+\.\d+) GB"
_SIZES = re.compile(r"max_total_num_tokens=(\d+), .*max_running_requests=(\d+), context_len=(\d+)")
_KV = re.compile(rf"KV Cache (?:is )?allocated\..*?(?:K size: {_GB}, V size: {_GB}|KV size: {_GB})", re.IGNORECASE)
_WEIGHTS = re.compile(rf"Load weight end\..*mem usage={_GB}")
_GRAPHS = re.compile(
    rf"\[\d+-\d+-\d+ [\d:]+([^\]]*)\] Capture [^\[\n]*graph end\. .*?elapsed=(\d+\.\d+) s, mem usage={_GB}",
    re.IGNORECASE,
)
_CHOSEN = re.compile(r"Attention backend not specified\. Use (\w+) backend")


def facts_from_log(text: str) -> ServerFacts:
    """Return the facts of a log; None for each that it lacks. SGLang's GB are GiB.

    Of a server of several GPUs they are those of the first one that the log names, and the tokens those of one copy of
    the model.
    The attention backend is that which SGLang chose; a given one is only in a line that is too long to be read.
    """
    sizes, kv, weights = _SIZES.search(text), _KV.search(text), _WEIGHTS.search(text)
    backend = _CHOSEN.search(text)
    ranks = _GRAPHS.findall(text)
    graphs = [(float(seconds), float(size)) for rank, seconds, size in ranks if rank == ranks[0][0]]
    facts = ServerFacts(
        kv_cache_gib=None if kv is None else sum(float(part) for part in kv.groups() if part is not None),
        weights_gib=None if weights is None else float(weights[1]),
        graph_capture_s=sum(seconds for seconds, _ in graphs) if graphs else None,
        graph_gib=sum(size for _, size in graphs) if graphs else None,
        attention_backend=None if backend is None else backend[1],
    )
    if sizes is None:
        return facts
    tokens, running, context = (int(part) for part in sizes.groups())
    fitting = min(float(running), tokens / context) if context else None
    return replace(facts, kv_cache_tokens=tokens, max_concurrency=fitting)


def with_metrics(
    facts: ServerFacts, before: Mapping[str, float], after: Mapping[str, float], usage: list[float]
) -> ServerFacts:
    """Return `facts` with the differences between two scrapes; a counter that was never raised is not on the page.

    SGLang states the acceptance of drafts as a present value, not as counters.
    """
    found = with_benchmark_metrics(facts, before, {RETRACTED: 0.0, CACHED_TOKENS: 0.0, **after}, usage, COUNTERS)
    rate, length = after.get(ACCEPT_RATE), after.get(ACCEPT_LENGTH)
    drafted = length is not None and length > 0
    return replace(
        found,
        spec_acceptance_rate=rate if drafted else None,
        spec_tokens_per_draft=length - 1 if drafted and length is not None else None,
    )
