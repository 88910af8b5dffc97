"""The use case of `tuner server drift`: watch running servers until a study no longer describes their traffic."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, pairwise

from prometheus_client.parser import text_string_to_metric_families

from records.measured import exported_of, measured
from records.trials import StudyRecord, TrialOutcome, TrialRecord
from storage import open_store
from tuner.clock import RealClock
from tuner.engines.simulator.client import workload_client
from tuner.engines.vllm.texts import METRICS, REQUEST_HISTOGRAMS
from tuner.errors import SettingError, as_text
from tuner.http import HttpError, ReadLimits, fetch
from tuner.scoring.drift import Deviation, DriftWatch, Histogram, Promise, Window
from tuner.scoring.goals import parse_slo
from tuner.use_cases.load import server_key
from tuner.use_cases.places import find_study, storage_url
from tuner.workloads.spec import ClosedLoop, Suite, read_workload
from tuner.workloads.traffic import Traffic

_LATENCY = re.compile(r"p(\d+(?:\.\d+)?)_(ttft|tpot)_ms")
_SEEDS = 5
"""Schedules whose lengths are drawn."""
_CACHE = tuple(name for name in (METRICS.prefix_hits, METRICS.prefix_queries) if name is not None)
"""Counters of prompt tokens: found in the prefix cache, and looked up there."""
_LIMITS = ReadLimits(20.0, 2**22, ("text/plain", "application/openmetrics-text"))
"""A page of vLLM has about 150 kB for each engine."""


@dataclass(frozen=True)
class DriftSettings:
    """The servers' URLs without `/v1`, study and database as for `tuner server verify`, and seconds.

    `window_s` is the length of a window, and `limit_s` how long is watched; None: until something has drifted.
    """

    urls: tuple[str, ...]
    study: str | None
    storage: str | None
    window_s: float
    limit_s: float | None


@dataclass(frozen=True)
class Watched:
    """A window that ended `seconds` after the start: what it counted, and what has drifted with it.

    Without a window a server began anew, or did not answer.
    """

    seconds: float
    window: Window | None
    drifted: tuple[Deviation, ...] = ()


Watching = Iterator[Watched]


def promise_of(record: StudyRecord, records: Sequence[TrialRecord]) -> Promise:
    """Return what the exported trial of a study promises, under the study's load.

    SLOs on a percentile of TTFT or TPOT over all requests are promises where the study measured that they hold.

    Raises:
        SettingError: if no trial is exported, or the study has several workloads.
    """
    number = exported_of(record.conclusion)
    outcome = measured(record.conclusion, records, number)
    if outcome is None:
        raise SettingError("study", record.name, "it has no winner yet", "name a study that has ended")
    workload = read_workload(record.premise["workload"])
    if isinstance(workload, Suite):
        raise SettingError("study", record.name, "servers get one traffic, it has several", "name a study of one")
    requests = [
        request
        for index in range(1 if isinstance(workload, ClosedLoop) else _SEEDS)
        for request in workload_client(workload, workload.repeat_seed(index), caching=False, pause_s=0.0).requests
    ]
    facts = outcome.server
    return Promise(
        rate=workload.rate if isinstance(workload, Traffic) else None,
        lengths={
            "prompt": sorted(request.prompt.tokens for request in requests),
            "answer": sorted(request.prompt.output for request in requests),
        },
        sharing=None if facts is None else facts.prefix_hit_rate,
        bounds=dict(_promises(record.premise["slos"], outcome)),
    )


def _promises(slos: Sequence[str], outcome: TrialOutcome) -> Iterator[tuple[str, tuple[float, float]]]:
    for slo in map(parse_slo, slos):
        found = _LATENCY.fullmatch(slo.metric)
        if found and slo.op.startswith("<") and slo.met(outcome.metric(slo.metric)):
            yield found[2].upper(), (slo.threshold / 1000, float(found[1]) / 100)


@dataclass(frozen=True)
class Counters:
    """What the pages of all servers count together: totals by name, and cumulative counts by upper edge."""

    totals: Mapping[str, float]
    buckets: Mapping[str, Mapping[float, float]]

    @property
    def requests(self) -> float:
        """The requests that have ended."""
        return self.buckets.get("prompt", {}).get(math.inf, 0.0)


_BUCKETS = {f"{metric}_bucket": name for name, metric in REQUEST_HISTOGRAMS.items()}
_Sample = tuple[str, float, float]


def samples_of(page: str) -> list[_Sample]:
    """Return a page's samples that are needed: name, upper edge of the bucket (0 for a counter), and value.

    Raises:
        ValueError: for text of another format.
    """
    lines = (line for line in page.splitlines() if line.startswith((*_BUCKETS, *_CACHE)))
    families = chain.from_iterable(map(text_string_to_metric_families, lines))
    every = (each for family in families for each in family.samples if each.name in (*_BUCKETS, *_CACHE))
    return [(each.name, float(each.labels.get("le", "0")), each.value) for each in every]


def counted(samples: Iterable[_Sample]) -> Counters:
    """Return the sums of samples over their labels and over the servers."""
    totals: dict[str, float] = defaultdict(float)
    buckets: dict[str, dict[float, float]] = {name: defaultdict(float) for name in REQUEST_HISTOGRAMS}
    for name, edge, value in samples:
        if name in _BUCKETS:
            buckets[_BUCKETS[name]][edge] += value
        else:
            totals[name] += value
    return Counters(totals, {name: counts for name, counts in buckets.items() if counts})


def window_between(before: Counters, after: Counters, seconds: float) -> Window | None:
    """Return what was counted between two reads.

    None if a counter fell, as those of a server that has started again, or is no number.
    """
    totals = {name: value - before.totals.get(name, 0.0) for name, value in after.totals.items()}
    histograms = {}
    for name, cumulative in after.buckets.items():
        edges = sorted(cumulative)
        below = [cumulative[edge] - before.buckets.get(name, {}).get(edge, 0.0) for edge in edges]
        counts = [count - lower for lower, count in pairwise([0.0, *below])]
        histograms[name] = Histogram(tuple(edges), tuple(counts))
    requests = after.requests - before.requests
    every = [requests, *totals.values(), *(count for each in histograms.values() for count in each.counts)]
    if not all(0 <= each < math.inf for each in every):
        return None
    hits, queries = (totals.get(name, 0.0) for name in _CACHE)
    return Window(seconds, requests, histograms, hits / queries if queries else None)


def read_pages(urls: Sequence[str]) -> Counters:
    """Return what the servers count now; they are read at once, so that a slow one delays no other.

    Raises:
        SettingError: for a server that sends no page, or counts no requests as vLLM does.
    """
    key = server_key()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with ThreadPoolExecutor(len(urls)) as pool:
        return counted(chain.from_iterable(pool.map(lambda url: _read(url, headers), urls)))


def _read(url: str, headers: Mapping[str, str]) -> list[_Sample]:
    """Return the samples of a server's page.

    Raises:
        SettingError: as `read_pages`.
    """
    try:
        reply = fetch(f"{url}/metrics", _LIMITS, headers=headers)
    except HttpError as error:
        raise SettingError("url", url, as_text(error.problem), error.remedy or "give the server's address") from None
    if reply.status != 200 or REQUEST_HISTOGRAMS["prompt"] not in reply.text:
        rule = f"it answers {reply.status} to /metrics, without {REQUEST_HISTOGRAMS['prompt']}"
        raise SettingError("url", url, rule, "give the address of a server of vLLM")
    try:
        return samples_of(reply.text)
    except ValueError:
        rule = "its page at /metrics is not in the text format of Prometheus"
        raise SettingError("url", url, rule, "give the address of a server of vLLM") from None


def watch_drift(settings: DriftSettings) -> tuple[StudyRecord, Watching]:
    """Return the study, and its servers' windows as they end.

    Raises:
        SettingError: as in `promise_of` and `read_pages`.
    """
    with closing(open_store(storage_url(settings.storage, create=False))) as store:
        record = find_study(store, settings.study)
        promise = promise_of(record, store.trials(record.name))
    return record, _windows(settings, DriftWatch(promise, len(settings.urls)), read_pages(settings.urls))


def _windows(settings: DriftSettings, watch: DriftWatch, before: Counters) -> Watching:
    """Yield each window as it ends, until something has drifted or the time is over."""
    clock = RealClock()
    begun = at = clock.monotonic()
    while settings.limit_s is None or clock.monotonic() - begun < settings.limit_s:
        time.sleep(settings.window_s)
        try:
            after, now = read_pages(settings.urls), clock.monotonic()
        except SettingError:  # a server that does not answer now may do so again
            yield Watched(clock.monotonic() - begun, None)
            continue
        window = window_between(before, after, now - at)
        drifted = () if window is None else tuple(watch.add(window))
        yield Watched(now - begun, window, drifted)
        if drifted:
            return
        before, at = after, now
