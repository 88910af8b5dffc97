"""Reading a server's `/metrics`: the few numbers that explain a trial, as differences over the scored benchmark."""

from __future__ import annotations

import csv
import http.client
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

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
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
SHARES = frozenset({KV_USAGE})
WANTED = frozenset(
    {
        RUNNING,
        WAITING,
        PREEMPTIONS,
        PREFIX_QUERIES,
        PREFIX_HITS,
        QUEUE_SUM,
        QUEUE_COUNT,
        KV_USAGE,
        DRAFTS,
        DRAFT_TOKENS,
        ACCEPTED,
    }
)


def parse_metrics(text: str, wanted: frozenset[str] = WANTED) -> dict[str, float]:
    """Return the wanted samples of a Prometheus text page: summed over their labels, but of a share the largest."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        if match is None or match[1] not in wanted:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if match[1] in SHARES:
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


@dataclass(frozen=True)
class Sample:
    """The server's state at a time in seconds since sampling began; None where it did not say."""

    at_s: float
    running: float | None
    waiting: float | None
    kv_usage: float | None
    preemptions: float | None


class MetricsSampler:
    """Looks at the server every `SAMPLE_S` seconds while it is entered, in a thread of its own."""

    def __init__(self, host: str, port: int, period_s: float = SAMPLE_S) -> None:
        self.samples: list[Sample] = []
        self._address = (host, port)
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-samples", daemon=True)

    @property
    def kv_usage(self) -> list[float]:
        """The KV cache's use in the samples that have it."""
        return [sample.kv_usage for sample in self.samples if sample.kv_usage is not None]

    def write(self, path: Path) -> None:
        """Write the samples as CSV."""
        names = [field.name for field in fields(Sample)]
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows([getattr(sample, name) for name in names] for sample in self.samples)

    def __enter__(self) -> MetricsSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(self._period_s):
            found = scrape(*self._address)
            if found is not None:
                state = (found.get(name) for name in (RUNNING, WAITING, KV_USAGE, PREEMPTIONS))
                self.samples.append(Sample(time.monotonic() - began, *state))


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
