"""Read what explains a trial: a server's `/metrics`, the GPU's energy, and the growth of the compilers' caches.

A kernel that is compiled for the first requests is on disk for all later servers. Work that leaves nothing on disk is
the same for every server, and so does not distort a comparison.
"""

from __future__ import annotations

import csv
import math
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from records.metrics import ENERGY
from records.trials import Repeat, ServerFacts
from tuner import gpu
from tuner.http import get_local

SAMPLING_PERIOD_S = 0.5
"""Seconds between two samples during a benchmark."""

_SAMPLE_TIMEOUT_S = 2.0
_SCRAPE_TIMEOUT_S = 20.0
_PAGE_LIMIT = 2**22
"""The largest page in bytes; one of vLLM has about 150 kB for each engine."""

PAGE = "/metrics"
"""Where most engines have their metrics."""

_PAGE_TYPES = ("text/plain", "application/openmetrics-text")

PREEMPTIONS = "vllm:num_preemptions_total"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
OFFLOADED_HITS = "vllm:external_prefix_cache_hits_total"
"""Prompt tokens that the GPU's prefix cache lacks and a KV connector finds, for example in the host's memory."""
QUEUE_SUM = "vllm:request_queue_time_seconds_sum"
QUEUE_COUNT = "vllm:request_queue_time_seconds_count"
KV_USAGE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
SHARES = frozenset(
    {
        *(KV_USAGE, "sglang:token_usage", "sglang:spec_accept_rate", "sglang:spec_accept_length"),
        "trtllm_kv_cache_utilization",
    }
)
"""Metrics whose largest value over all engines counts; all others are summed."""

_RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "attn_tp_rank", "attn_cp_rank", "moe_dp_rank"})
"""Labels of SGLang's processes that hold parts of one copy of the model; `dp_rank` is another copy."""

READ_METRICS = (
    *(RUNNING, WAITING, PREEMPTIONS, PREFIX_QUERIES, PREFIX_HITS, OFFLOADED_HITS, QUEUE_SUM, QUEUE_COUNT, KV_USAGE),
    *(DRAFTS, DRAFT_TOKENS, ACCEPTED),
)


@dataclass(frozen=True)
class StateMetrics:
    """An engine's names of metrics: those of its state, which are sampled, all that are read, and their page."""

    running: str
    waiting: str
    kv_usage: str | None
    preemptions: str | None
    read: tuple[str, ...]
    page: str = PAGE


VLLM_STATE = StateMetrics(RUNNING, WAITING, KV_USAGE, PREEMPTIONS, READ_METRICS)


@dataclass(frozen=True)
class Counters:
    """An engine's names of the counters whose differences explain a benchmark; an empty name is one that it lacks."""

    preemptions: str
    prefix_hits: str
    prefix_queries: str
    queue_sum: str
    queue_count: str
    drafts: str = ""
    draft_tokens: str = ""
    accepted: str = ""
    offloaded_hits: str = ""


VLLM_COUNTERS = Counters(
    PREEMPTIONS, PREFIX_HITS, PREFIX_QUERIES, QUEUE_SUM, QUEUE_COUNT, DRAFTS, DRAFT_TOKENS, ACCEPTED, OFFLOADED_HITS
)


def parse_metrics(text: str, names: tuple[str, ...] = READ_METRICS) -> dict[str, float]:
    """Return the named samples of a Prometheus text page: the sum over their labels, for `SHARES` the largest.

    Ranks of one copy of the model count the same requests, so of samples that differ in `_RANKS` alone the largest
    counts. Lines of other metrics are skipped before they are parsed: a page has a thousand, and is read every 0.5 s
    during a benchmark. Malformed lines and values that are not finite are ignored.
    """
    values: dict[str, float] = {}
    of_ranks: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for line in text.splitlines():
        if not line.startswith(names):
            continue
        try:
            samples = [sample for family in text_string_to_metric_families(line) for sample in family.samples]
        except ValueError:
            continue
        for sample in samples:
            if not math.isfinite(sample.value):
                continue
            if sample.name in SHARES:
                values[sample.name] = max(sample.value, values.get(sample.name, sample.value))
            elif sample.name in names:
                value = sample.value
                if not _RANKS.isdisjoint(sample.labels):
                    copy = sample.name, frozenset(each for each in sample.labels.items() if each[0] not in _RANKS)
                    before = of_ranks.get(copy, 0.0)
                    of_ranks[copy] = max(value, before)
                    value = of_ranks[copy] - before
                values[sample.name] = values.get(sample.name, 0.0) + value
    return {name: value for name, value in values.items() if math.isfinite(value)}


def scrape(
    host: str,
    port: int,
    timeout_s: float = _SCRAPE_TIMEOUT_S,
    names: tuple[str, ...] = READ_METRICS,
    page: str = PAGE,
) -> dict[str, float] | None:
    """Return the present values of the named metrics; None if the server sends no such page in time."""
    reply = get_local(host, port, page, timeout_s, size=_PAGE_LIMIT, types=_PAGE_TYPES)
    return parse_metrics(reply.text, names) if reply is not None and reply.status == 200 else None


@dataclass(frozen=True)
class Sample:
    """The server's state at a time in seconds since sampling began; None where `/metrics` lacks the value."""

    at_s: float
    running: float | None
    waiting: float | None
    kv_usage: float | None
    preemptions: float | None


class MetricsSampler:
    """Samples the server every `SAMPLING_PERIOD_S` seconds in its own thread, as long as the context is entered."""

    def __init__(
        self, host: str, port: int, period_s: float = SAMPLING_PERIOD_S, names: StateMetrics = VLLM_STATE
    ) -> None:
        self.samples: list[Sample] = []
        self._address = (host, port)
        self._period_s = period_s
        self._names = names
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
        self._thread.join(2 * _SAMPLE_TIMEOUT_S)

    def _run(self) -> None:
        began, names = time.monotonic(), self._names
        sampled = (names.running, names.waiting, names.kv_usage, names.preemptions)
        while not self._stop.wait(self._period_s):
            values = scrape(*self._address, _SAMPLE_TIMEOUT_S, names.read, names.page)
            if values is not None:
                state = (None if name is None else values.get(name) for name in sampled)
                self.samples.append(Sample(time.monotonic() - began, *state))


def with_benchmark_metrics(
    facts: ServerFacts,
    before: Mapping[str, float],
    after: Mapping[str, float],
    kv_usage: list[float],
    names: Counters = VLLM_COUNTERS,
) -> ServerFacts:
    """Return `facts` with the differences between two scrapes and the KV cache's use in the samples between them."""

    def increase(name: str) -> float | None:
        return after[name] - before.get(name, 0.0) if name in after else None

    def ratio(numerator: str, denominator: str, also: str = "") -> float | None:
        up, down = increase(numerator), increase(denominator)
        share = (up + (increase(also) or 0.0)) / down if up is not None and down else None
        return share if share is not None and math.isfinite(share) else None

    return replace(
        facts,
        preemptions=increase(names.preemptions),
        prefix_hit_rate=ratio(names.prefix_hits, names.prefix_queries, names.offloaded_hits),
        queue_time_mean_s=ratio(names.queue_sum, names.queue_count),
        kv_usage_max=max(kv_usage) if kv_usage else None,
        kv_usage_mean=sum(kv_usage) / len(kv_usage) if kv_usage else None,
        spec_acceptance_rate=ratio(names.accepted, names.draft_tokens),
        spec_tokens_per_draft=ratio(names.accepted, names.drafts),
    )


ENERGY_PERIOD_S = 0.1
"""Seconds between two readings during a benchmark."""

_JOIN_S = 5.0

Reading = tuple[float, float]
"""A time in seconds and the counter's value in joules."""


class EnergyMeter:
    """Reads the counters of GPUs at the start, every `ENERGY_PERIOD_S` seconds, and at the end of the context.

    A reading is the sum of all counters.

    Args:
        indices: of the GPUs, as NVML numbers them; empty: nothing is read.
        read: returns a counter in joules, None where there is none.
    """

    def __init__(self, indices: Sequence[int], read: Callable[[int], float | None] = gpu.energy_j) -> None:
        self.readings: list[Reading] = []
        self._indices = tuple(indices)
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="energy-samples", daemon=True)

    def __enter__(self) -> EnergyMeter:
        if self._reads():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        self._reads()

    def _run(self) -> None:
        while not self._stop.wait(ENERGY_PERIOD_S):
            self._reads()

    def _reads(self) -> bool:
        """Keep the counters' present sum; return whether each GPU has a counter."""
        values = [value for index in self._indices if (value := self._read(index)) is not None]
        complete = bool(values) and len(values) == len(self._indices)
        if complete:
            self.readings.append((time.monotonic(), math.fsum(values)))
        return complete


def with_energy(repeat: Repeat, readings: Sequence[Reading]) -> Repeat:
    """Return a repeat with its energy per output token, in joules; None without a counter or an output token.

    With E the energy of the benchmark, r its output throughput in tokens per second and d its duration in seconds, a
    token takes E / (r d). The readings start before the benchmark, while its client prepares, and end after it. Of all
    windows of the benchmark's duration, the one with the most energy is the benchmark's: a GPU takes least when idle.
    """
    rate, duration = repeat.metrics.get("output_throughput"), repeat.duration_s
    energy = None if not duration else energy_of_window(readings, duration)
    tokens = None if not rate or not duration else rate * duration
    value = energy / tokens if energy is not None and tokens else None
    return replace(repeat, metrics={**repeat.metrics, ENERGY: value})


def energy_of_window(readings: Sequence[Reading], duration_s: float) -> float | None:
    """Return the most energy in joules of a window of `duration_s` seconds that begins or ends at a reading.

    Between two readings the energy is interpolated linearly. A window that is longer than the readings has all their
    energy. None with fewer than two readings, and where the counter decreases, as when the driver is loaded again.
    """
    values = [value for _, value in readings]
    if len(readings) < 2 or values != sorted(values):
        return None
    times = [at for at, _ in readings]
    first, last = times[0], times[-1]
    starts = [first, *(each for at in times for each in (at, at - duration_s) if first <= each <= last - duration_s)]
    return max(_energy_at(readings, times, start + duration_s) - _energy_at(readings, times, start) for start in starts)


def _energy_at(readings: Sequence[Reading], times: Sequence[float], moment: float) -> float:
    """Return the counter at a moment, interpolated between readings, and constant outside of them."""
    after = bisect_right(times, moment)
    if after == 0:
        return readings[0][1]
    if after == len(readings):
        return readings[-1][1]
    (before_s, before), (after_s, value) = readings[after - 1], readings[after]
    return before + (value - before) * (moment - before_s) / (after_s - before_s)


_HOME = "HOME"
_FOLDERS = (
    ("VLLM_CACHE_ROOT", "", ".cache/vllm"),
    ("TRITON_CACHE_DIR", "", ".triton/cache"),
    ("TORCHINDUCTOR_CACHE_DIR", "", None),
    ("FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer", ".cache/flashinfer"),
    ("DG_JIT_CACHE_DIR", "", ".deep_gemm"),
    ("SGLANG_DG_CACHE_DIR", "", ".cache/deep_gemm"),
    ("TILELANG_CACHE_DIR", "", ".tilelang/cache"),
    ("TVM_FFI_CACHE_DIR", "", ".cache/tvm-ffi"),
    ("CUDA_CACHE_PATH", "", ".nv/ComputeCache"),
)
"""A variable, the folder below its value, and the folder below HOME without the variable."""


class CompileCaches:
    """Counts the files of the caches of a server with this environment.

    Servers that run at the same time share the caches: growth may come from another one.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folders = cache_folders(environment)
        self._files = 0

    def mark(self) -> None:
        """Note the files that there are."""
        self._files = self._count()

    def grew(self) -> bool:
        """Return whether there are more files than at the last mark."""
        return self._count() > self._files

    def _count(self) -> int:
        return sum(len(files) for folder in self._folders for _, _, files in os.walk(folder))


def cache_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders of the caches, whether or not they exist; none lies in another one."""
    home = environment.get(_HOME)
    found: set[Path] = set()
    for variable, below, default in _FOLDERS:
        if environment.get(variable):
            found.add(Path(environment[variable], below))
        elif home and default:
            found.add(Path(home, default))
    return tuple(sorted(each for each in found if not any(parent in found for parent in each.parents)))
