"""From a run's records to its figures: over all requests and for each class.

Every offered request counts: one that failed is in `offered`, in no latency, and never within its SLO. Percentiles
interpolate linearly between order statistics, as numpy's default and `vllm bench serve` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from storage.metrics import PERCENTILES
from tuner.workloads.requests import RequestRecord, RequestStatus, Window, stable_middle

LATENCY_NAMES = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class RequestSlo:
    """What one request must meet: upper bounds in ms on its own latencies, counted from when it was due.

    `bounds_ms` has `ttft`, `tpot`, `e2el` and `itl`, those that there are; `itl` bounds the `itl_percentile` of the
    request's own gaps. An answer that came in one piece has no gaps and an answer of one token no TPOT: they meet those
    bounds. Anything else that is not known meets none.
    """

    bounds_ms: Mapping[str, float] = field(default_factory=dict)
    itl_percentile: int = 95

    def met(self, record: RequestRecord) -> bool:
        """Return whether the request completed and kept every bound."""
        if not record.completed:
            return False
        found = record.latencies_ms()
        if "itl" in self.bounds_ms:
            gaps = record.gaps_s
            found["itl"] = 1000.0 * float(np.percentile(gaps, self.itl_percentile)) if gaps else 0.0
        if record.output_tokens == 1:
            found["tpot"] = 0.0
        return all(name in found and found[name] < bound for name, bound in self.bounds_ms.items())


@dataclass(frozen=True)
class RequestStatistics:
    """The figures of some requests; `latencies` are named as in `storage.metrics` (`p99_ttft_ms`), absent ones None.

    Latencies count from when a request was due, over the completed requests of the stable middle; `client_latencies`
    from when it was sent. `good` requests completed within their class's SLO; None where no class has one.
    """

    offered: int
    completed: int
    statuses: Mapping[str, int]
    good: int | None
    duration_s: float | None
    latencies: Mapping[str, float | None] = field(default_factory=dict)
    client_latencies: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def success_rate(self) -> float | None:
        """Completed of offered requests."""
        return self.completed / self.offered if self.offered else None

    @property
    def goodput_share(self) -> float | None:
        """Requests within their SLO of offered requests."""
        return None if self.good is None or not self.offered else self.good / self.offered

    @property
    def goodput(self) -> float | None:
        """Requests within their SLO per second."""
        return None if self.good is None or not self.duration_s else self.good / self.duration_s


@dataclass(frozen=True)
class RunSummary:
    """A run's figures: over all, by class, and the stable middle that latencies were taken over (None: all of it)."""

    overall: RequestStatistics
    classes: Mapping[str, RequestStatistics]
    window: Window | None


def summarise_run(
    records: Sequence[RequestRecord],
    names: Iterable[str],
    slos: Mapping[str, RequestSlo] | None = None,
    users: int | None = None,
) -> RunSummary:
    """Return the figures of a run.

    Args:
        records: one for each offered request.
        names: the classes, so that one of which nothing was offered is there as well.
        slos: what a request must meet, by class; a class without one counts as good what completed.
        users: of a closed loop; None for an open one.
    """
    window = stable_middle(records, users)
    ends = [record.end_s for record in records if record.end_s is not None]
    duration = max(ends) if ends else None

    def figures(chosen: Sequence[RequestRecord]) -> RequestStatistics:
        good = None if not slos else sum(slos.get(record.name, RequestSlo()).met(record) for record in chosen)
        stable = [record for record in chosen if window is None or window.holds(record)]
        return RequestStatistics(
            offered=len(chosen),
            completed=sum(record.completed for record in chosen),
            statuses={str(status): sum(record.status is status for record in chosen) for status in RequestStatus},
            good=good,
            duration_s=duration,
            latencies=_percentiles(stable, since_sent=False),
            client_latencies=_percentiles(stable, since_sent=True),
        )

    overall = figures(records)
    chosen = {name: [record for record in records if record.name == name] for name in names}
    classes = {name: overall if len(own) == len(records) else figures(own) for name, own in chosen.items()}
    return RunSummary(overall, classes, window)


def _percentiles(records: Sequence[RequestRecord], since_sent: bool) -> dict[str, float | None]:
    values: dict[str, list[float]] = {name: [] for name in LATENCY_NAMES}
    for record in records:
        if not record.completed:
            continue
        for name, value in record.latencies_ms(since_sent).items():
            values[name].append(value)
        values["itl"].extend(1000.0 * gap for gap in record.gaps_s)
    result: dict[str, float | None] = {}
    for name, found in values.items():
        result[f"mean_{name}_ms"] = float(np.mean(found)) if found else None
        at = np.percentile(found, PERCENTILES) if found else None
        for place, percentile in enumerate(PERCENTILES):
            result[f"p{percentile}_{name}_ms"] = None if at is None else float(at[place])
    return result
