"""From a run's summary to metrics by name: over all, `CLASS.name` of each class, `worst.name`, `client.name`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from storage.metrics import Direction, metric
from storage.records import Repeat
from tuner.workloads.requests import RequestRecord
from tuner.workloads.summary import RequestStatistics, RunSummary, summarise_run
from tuner.workloads.traffic import Traffic

MetricValues = dict[str, float | None]


def run_metrics(summary: RunSummary, records: Sequence[RequestRecord]) -> MetricValues:
    """Return a run's metrics under the names of `storage.metrics`.

    `worst.name` is the worst value among the classes of which anything was offered, None if one of them lacks it.
    `client.name` are the latencies over all classes from when a request was sent.
    """
    result = _figures(summary.overall, records)
    by_class = {
        name: _figures(figures, [record for record in records if record.name == name])
        for name, figures in summary.classes.items()
    }
    for name, found in by_class.items():
        result |= {f"{name}.{key}": value for key, value in found.items()}
    offered = [found for name, found in by_class.items() if summary.classes[name].offered]
    result |= {f"worst.{key}": worst_value(key, offered) for key in result if "." not in key}
    return result | {f"client.{key}": value for key, value in summary.overall.client_latencies.items()}


def _figures(figures: RequestStatistics, records: Sequence[RequestRecord]) -> MetricValues:
    duration = figures.duration_s
    done = [record for record in records if record.completed]
    answers = _sum(record.output_tokens for record in done)
    prompts = _sum(record.input_tokens for record in done)
    both = None if answers is None or prompts is None else answers + prompts

    def rate(count: float | None) -> float | None:
        return None if count is None or not duration or not done else count / duration

    return {
        "output_throughput": rate(answers),
        "total_token_throughput": rate(both),
        "request_throughput": rate(len(done)),
        "success_rate": figures.success_rate,
        "goodput": figures.goodput,
        "goodput_share": figures.goodput_share,
        **figures.latencies,
    }


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def worst_value(name: str, found: Sequence[Mapping[str, float | None]]) -> float | None:
    """Return the worst value of a metric; None if one of them lacks it."""
    values = [figures.get(name) for figures in found]
    known = [value for value in values if value is not None]
    if not known or len(known) != len(values):
        return None
    return min(known) if metric(name).direction is Direction.MAXIMIZE else max(known)


def repeat_of(traffic: Traffic, records: Sequence[RequestRecord], index: int) -> Repeat:
    """Return the figures of repeat `index` of traffic."""
    slos = {name: slo.request for name, slo in traffic.slos.items()}
    summary = summarise_run(records, traffic.sent_classes, slos, traffic.users)
    overall = summary.overall
    return Repeat(
        index=index,
        seed=traffic.repeat_seed(index),
        offered=overall.offered,
        completed=overall.completed,
        failed=overall.offered - overall.completed,
        duration_s=overall.duration_s,
        metrics=run_metrics(summary, records),
    )
