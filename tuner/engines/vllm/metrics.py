"""Reading a server's `/metrics`: the few numbers that explain a trial, as differences over the scored benchmark."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Mapping
from dataclasses import replace

from storage.records import ServerFacts

SAMPLE_S = 0.5
_TIMEOUT_S = 2.0
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?$")

PREEMPTIONS = "vllm:num_preemptions_total"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
QUEUE_SUM = "vllm:request_queue_time_seconds_sum"
QUEUE_COUNT = "vllm:request_queue_time_seconds_count"
KV_USAGE = "vllm:kv_cache_usage_perc"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
GAUGES = frozenset({KV_USAGE})
WANTED = frozenset(
    {PREEMPTIONS, PREFIX_QUERIES, PREFIX_HITS, QUEUE_SUM, QUEUE_COUNT, KV_USAGE, DRAFTS, DRAFT_TOKENS, ACCEPTED}
)


def parse_metrics(text: str, wanted: frozenset[str] = WANTED) -> dict[str, float]:
    """Return the wanted samples of a Prometheus text page: counters summed over their labels, gauges the largest."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        if match is None or match[1] not in wanted:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if match[1] in GAUGES:
            values[match[1]] = max(value, values.get(match[1], value))
        else:
            values[match[1]] = values.get(match[1], 0.0) + value
    return values


def scrape(host: str, port: int) -> dict[str, float] | None:
    """Return the server's wanted metrics now; None if it does not answer."""
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return parse_metrics(body.decode("utf-8", "replace")) if response.status == 200 else None


class KvUsageSampler:
    """Looks at the KV cache's use every `SAMPLE_S` seconds between `start` and `stop`, in a thread of its own."""

    def __init__(self, host: str, port: int, period_s: float = SAMPLE_S) -> None:
        self.samples: list[float] = []
        self._address = (host, port)
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-usage", daemon=True)

    def __enter__(self) -> KvUsageSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            usage = (scrape(*self._address) or {}).get(KV_USAGE)
            if usage is not None:
                self.samples.append(usage)


def with_load(
    facts: ServerFacts, before: Mapping[str, float], after: Mapping[str, float], usage: list[float]
) -> ServerFacts:
    """Add to `facts` what happened between two scrapes, and the KV cache's use sampled in between."""

    def grown(name: str) -> float | None:
        return after[name] - before.get(name, 0.0) if name in after else None

    def share(part: str, whole: str) -> float | None:
        up, down = grown(part), grown(whole)
        return up / down if up is not None and down else None

    return replace(
        facts,
        preemptions=grown(PREEMPTIONS),
        prefix_hit_rate=share(PREFIX_HITS, PREFIX_QUERIES),
        queue_time_mean_s=share(QUEUE_SUM, QUEUE_COUNT),
        kv_usage_max=max(usage) if usage else None,
        kv_usage_mean=sum(usage) / len(usage) if usage else None,
        spec_acceptance_rate=share(ACCEPTED, DRAFT_TOKENS),
        spec_tokens_per_draft=share(ACCEPTED, DRAFTS),
    )
