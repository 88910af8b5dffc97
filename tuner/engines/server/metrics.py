"""Read what explains a trial: a server's `/metrics`, the GPU's energy, and the growth of the compilers' caches.

The caches show whether a server compiled kernels while it was measured. A kernel that is compiled for the first
requests is on disk for all later servers. Work that leaves nothing on disk is the same for every server, and so does
not distort a comparison.
"""

from __future__ import annotations

import csv
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from records.metrics import ENERGY
from records.trials import Repeat, ServerFacts
from tuner import gpu
from tuner.http import get_local

SAMPLING_PERIOD_S = 0.5
"""Seconds between two samples during a benchmark."""

_SAMPLE_TIMEOUT_S = 2.0
_SCRAPE_TIMEOUT_S = 20.0
PAGE_LIMIT = 2**22
"""The largest page in bytes; one of vLLM has about 150 kB for each engine."""

_PAGE_TYPES = ("text/plain", "application/openmetrics-text")


@dataclass(frozen=True)
class MetricNames:
    """An engine's names of the metrics that are read; None for one that it lacks.

    The first four are its state, which is sampled during a benchmark. Differences of the counters explain a benchmark.

    Attributes:
        running: requests that run.
        waiting: requests in the queue.
        kv_usage: share of the KV cache in use.
        preemptions: counter of the requests that gave up their place and are computed again.
        prefix_hits: counter of what prompts found in the prefix cache.
        prefix_queries: counter of what was looked up there; None: hits and misses are.
        prefix_misses: counter of what was not found there.
        offloaded_hits: counter of what the GPU's prefix cache lacks and another cache has, such as the host's memory.
        queue_sum: counter of the seconds in the queue.
        queue_count: counter of the requests that left the queue.
        drafts: counter of drafts.
        draft_tokens: counter of the tokens of drafts.
        accepted: counter of the accepted ones among them.
        others: further ones, which only the engine itself reads.
        shares: those whose largest value over all engines counts, beside `kv_usage`; the values of others are summed.
        rank_labels: labels of processes that hold parts of one copy of the model and count the same requests.
        page: where they are.
        hides_zeros: whether the page lacks counters that were never raised; otherwise the version lacks them.
    """

    running: str
    waiting: str
    kv_usage: str | None = None
    preemptions: str | None = None
    prefix_hits: str | None = None
    prefix_queries: str | None = None
    prefix_misses: str | None = None
    offloaded_hits: str | None = None
    queue_sum: str | None = None
    queue_count: str | None = None
    drafts: str | None = None
    draft_tokens: str | None = None
    accepted: str | None = None
    others: tuple[str, ...] = ()
    shares: frozenset[str] = frozenset()
    rank_labels: frozenset[str] = frozenset()
    page: str = "/metrics"
    hides_zeros: bool = False

    @property
    def state(self) -> tuple[str | None, ...]:
        """Those that are sampled, in the order of the fields of `Sample`."""
        return self.running, self.waiting, self.kv_usage, self.preemptions

    @cached_property
    def read(self) -> tuple[str, ...]:
        """All names."""
        counters = (self.prefix_hits, self.prefix_queries, self.prefix_misses, self.offloaded_hits)
        more = (self.queue_sum, self.queue_count, self.drafts, self.draft_tokens, self.accepted)
        return tuple(name for name in (*self.state, *counters, *more, *self.others) if name is not None)


def parse_metrics(text: str, names: MetricNames) -> dict[str, float]:
    """Return the named samples of a Prometheus text page: the sum over their labels, for shares the largest.

    Of samples that differ in `rank_labels` alone, the largest counts. Lines of other metrics are skipped before they
    are parsed: a page has a thousand, and is read every 0.5 s during a benchmark. Malformed lines and values that are
    not finite are ignored.
    """
    read, shares, ranks = names.read, names.shares | {names.kv_usage}, names.rank_labels
    values: dict[str, float] = {}
    of_ranks: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    if text.startswith('"'):  # llama.cpp's builds 7010 to 7190 write the page as a string of JSON
        with suppress(ValueError):
            text = json.loads(text)
    for line in text.splitlines():
        if not line.startswith(read):
            continue
        try:
            samples = [sample for family in text_string_to_metric_families(line) for sample in family.samples]
        except ValueError:
            continue
        for sample in samples:
            if not math.isfinite(sample.value):
                continue
            if sample.name in shares:
                values[sample.name] = max(sample.value, values.get(sample.name, sample.value))
            elif sample.name in read:
                value = sample.value
                if not ranks.isdisjoint(sample.labels):
                    copy = sample.name, frozenset(each for each in sample.labels.items() if each[0] not in ranks)
                    before = of_ranks.get(copy, 0.0)
                    of_ranks[copy] = max(value, before)
                    value = of_ranks[copy] - before
                values[sample.name] = values.get(sample.name, 0.0) + value
    return {name: value for name, value in values.items() if math.isfinite(value)}


def scrape(host: str, port: int, names: MetricNames, timeout_s: float = _SCRAPE_TIMEOUT_S) -> dict[str, float] | None:
    """Return the present values of the named metrics; None if the server sends no such page in time."""
    reply = get_local(host, port, names.page, timeout_s, size=PAGE_LIMIT, types=_PAGE_TYPES)
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

    def __init__(self, host: str, port: int, names: MetricNames) -> None:
        self.samples: list[Sample] = []
        self._address = (host, port)
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
        began = time.monotonic()
        while not self._stop.wait(SAMPLING_PERIOD_S):
            values = scrape(*self._address, self._names, _SAMPLE_TIMEOUT_S)
            if values is not None:
                state = (None if name is None else values.get(name) for name in self._names.state)
                self.samples.append(Sample(time.monotonic() - began, *state))


def with_benchmark_metrics(
    facts: ServerFacts,
    before: Mapping[str, float],
    after: Mapping[str, float],
    kv_usage: Sequence[float],
    names: MetricNames,
) -> ServerFacts:
    """Return `facts` with the differences between two scrapes and the KV cache's use in the samples between them."""

    def increase(name: str | None) -> float | None:
        if name is None or (name not in after and not names.hides_zeros):
            return None
        return after.get(name, 0.0) - before.get(name, 0.0)

    def ratio(up: float | None, down: float | None) -> float | None:
        share = up / down if up is not None and down else None
        return share if share is not None and math.isfinite(share) else None

    hits, queries = increase(names.prefix_hits), increase(names.prefix_queries)
    if names.prefix_queries is None and hits is not None:
        queries = hits + (increase(names.prefix_misses) or 0.0)
    if hits is not None:
        hits += increase(names.offloaded_hits) or 0.0
    return replace(
        facts,
        preemptions=increase(names.preemptions),
        prefix_hit_rate=ratio(hits, queries),
        queue_time_mean_s=ratio(increase(names.queue_sum), increase(names.queue_count)),
        kv_usage_max=max(kv_usage) if kv_usage else None,
        kv_usage_mean=sum(kv_usage) / len(kv_usage) if kv_usage else None,
        spec_acceptance_rate=ratio(increase(names.accepted), increase(names.draft_tokens)),
        spec_tokens_per_draft=ratio(increase(names.accepted), increase(names.drafts)),
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
    begins, ends = (np.interp(np.add(starts, length), times, values) for length in (0.0, duration_s))
    return float((ends - begins).max())


_CACHE_FOLDERS = (
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
    home = environment.get("HOME")
    found: set[Path] = set()
    for variable, below, default in _CACHE_FOLDERS:
        if environment.get(variable):
            found.add(Path(environment[variable], below))
        elif home and default:
            found.add(Path(home, default))
    return tuple(sorted(each for each in found if not any(parent in found for parent in each.parents)))
