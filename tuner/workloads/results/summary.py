"""Summarises the records of a run: counts, latencies and goodput, over all requests and for each class.

Every offered request counts. A request that failed is part of `offered`, has no latency, and misses its SLO.
Percentiles interpolate linearly between order statistics, as NumPy's default and `vllm bench serve` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from storage.metrics import PERCENTILES
from tuner.workloads.results.requests import RequestRecord, RequestStatus, Window, stable_middle

LATENCY_NAMES = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class RequestSlo:
    """The bounds that one request must meet, counted from its intended start.

    An answer in a single chunk has no gaps and meets any ITL bound; an answer of one token has no TPOT and meets any
    TPOT bound. Any other missing latency misses its bound.

    Attributes:
        bounds_ms: upper bounds in ms by latency (`ttft`, `tpot`, `itl`, `e2el`).
        itl_percentile: the percentile over the request's own gaps that `itl` bounds.
    """

    bounds_ms: Mapping[str, float] = field(default_factory=dict)
    itl_percentile: int = 95

    def met(self, record: RequestRecord) -> bool:
        """Return whether the request completed and is below every bound."""
        if not record.completed:
            return False
        latencies = record.latencies_ms()
        if "itl" in self.bounds_ms:
            gaps = record.gaps_s
            latencies["itl"] = 1000.0 * float(np.percentile(gaps, self.itl_percentile)) if gaps else 0.0
        if record.output_tokens == 1:
            latencies["tpot"] = 0.0
        return all(name in latencies and latencies[name] < bound for name, bound in self.bounds_ms.items())


@dataclass(frozen=True)
class RequestStatistics:
    """The statistics of a group of requests.

    Attributes:
        offered: number of requests.
        completed: number of completed requests.
        statuses: number of requests by status.
        good: number of requests that meet the SLO of their class; None if no class has an SLO.
        good_input_tokens: prompt tokens of these requests; None without SLOs, or where a request lacks them.
        good_output_tokens: the same for the answers.
        duration_s: seconds from the start of the run to the end of its last request.
        latencies: mean and percentiles in ms, named as in `storage.metrics` (`p99_ttft_ms`), over the completed
            requests of the stable middle, counted from the intended start; None without such requests.
        client_latencies: the same, counted from sending.
    """

    offered: int
    completed: int
    statuses: Mapping[str, int]
    good: int | None
    duration_s: float | None
    good_input_tokens: int | None = None
    good_output_tokens: int | None = None
    latencies: Mapping[str, float | None] = field(default_factory=dict)
    client_latencies: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def success_rate(self) -> float | None:
        """Completed requests as a share of offered ones; None if none is offered."""
        return self.completed / self.offered if self.offered else None

    @property
    def goodput_share(self) -> float | None:
        """Requests that meet their SLO, as a share of offered ones; None without SLOs or requests."""
        return None if self.good is None or not self.offered else self.good / self.offered

    @property
    def goodput(self) -> float | None:
        """Requests per second that meet their SLO; None without SLOs or duration."""
        return None if self.good is None or not self.duration_s else self.good / self.duration_s


@dataclass(frozen=True)
class RunSummary:
    """The statistics of a run over all requests and by class; `window` is its stable middle, None for the whole run."""

    overall: RequestStatistics
    classes: Mapping[str, RequestStatistics]
    window: Window | None


def summarise_run(
    records: Sequence[RequestRecord],
    names: Iterable[str],
    slos: Mapping[str, RequestSlo] | None = None,
    users: int | None = None,
) -> RunSummary:
    """Return the statistics of a run.

    Args:
        records: one for each offered request.
        names: the classes, including those without requests.
        slos: the SLO of each class; in a class without an SLO, every completed request is good.
        users: users of a closed loop; None for an open loop.
    """
    window = stable_middle(records, users)
    ends = [record.end_s for record in records if record.end_s is not None]
    duration = max(ends) if ends else None

    def statistics(group: Sequence[RequestRecord]) -> RequestStatistics:
        good = None if not slos else [each for each in group if slos.get(each.name, RequestSlo()).met(each)]
        stable = [record for record in group if window is None or window.holds(record)]
        return RequestStatistics(
            offered=len(group),
            completed=sum(record.completed for record in group),
            statuses={str(status): sum(record.status is status for record in group) for status in RequestStatus},
            good=None if good is None else len(good),
            duration_s=duration,
            good_input_tokens=None if good is None else sum_of(record.input_tokens for record in good),
            good_output_tokens=None if good is None else sum_of(record.output_tokens for record in good),
            latencies=_latency_statistics(stable, since_sent=False),
            client_latencies=_latency_statistics(stable, since_sent=True),
        )

    overall = statistics(records)
    by_class = {name: [record for record in records if record.name == name] for name in names}
    classes = {name: overall if len(own) == len(records) else statistics(own) for name, own in by_class.items()}
    return RunSummary(overall, classes, window)


def sum_of(values: Iterable[int | None]) -> int | None:
    """Return the sum of counts; None if one of them is unknown."""
    counts = list(values)
    return None if None in counts else sum(count for count in counts if count is not None)


def _latency_statistics(records: Sequence[RequestRecord], since_sent: bool) -> dict[str, float | None]:
    values: dict[str, list[float]] = {name: [] for name in LATENCY_NAMES}
    for record in records:
        if not record.completed:
            continue
        for name, value in record.latencies_ms(since_sent).items():
            values[name].append(value)
        values["itl"].extend(1000.0 * gap for gap in record.gaps_s)
    result: dict[str, float | None] = {}
    for name, latencies in values.items():
        result[f"mean_{name}_ms"] = float(np.mean(latencies)) if latencies else None
        at = np.percentile(latencies, PERCENTILES) if latencies else None
        for place, percentile in enumerate(PERCENTILES):
            result[f"p{percentile}_{name}_ms"] = None if at is None else float(at[place])
    return result
