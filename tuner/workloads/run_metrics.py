"""Names the metrics of a run: over all requests, `CLASS.name` by class, `worst.name` and `client.name`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from records.metrics import Direction, metric, registered
from records.trials import Repeat
from tuner.workloads.results import RequestRecord, RequestStatistics, RunSummary, sum_of, summarise_run
from tuner.workloads.traffic import Traffic

MetricValues = dict[str, float | None]


def run_metrics(summary: RunSummary, records: Sequence[RequestRecord]) -> MetricValues:
    """Return a run's metrics under the names of `records.metrics`.

    `worst.name` is the worst value over the classes with offered requests; None if one of them has no value.
    `client.name` is a latency over all classes, counted from sending.
    """
    metrics = _metrics_of(summary.overall, records)
    by_class = {
        name: _metrics_of(statistics, [record for record in records if record.name == name])
        for name, statistics in summary.classes.items()
    }
    for name, own in by_class.items():
        metrics |= {f"{name}.{key}": value for key, value in own.items()}
    offered = [own for name, own in by_class.items() if summary.classes[name].offered]
    metrics |= {f"worst.{key}": worst_value(key, offered) for key in metrics if "." not in key}
    return metrics | {f"client.{key}": value for key, value in summary.overall.client_latencies.items()}


def _metrics_of(statistics: RequestStatistics, records: Sequence[RequestRecord]) -> MetricValues:
    duration = statistics.duration_s
    completed = [record for record in records if record.completed]
    answers = sum_of(record.output_tokens for record in completed)
    prompts = sum_of(record.input_tokens for record in completed)
    good_answers = statistics.good_output_tokens

    def rate(count: float | None) -> float | None:
        return None if count is None or not duration or not completed else count / duration

    return {
        "output_throughput": rate(answers),
        "total_token_throughput": rate(sum_of((prompts, answers))),
        "request_throughput": rate(len(completed)),
        "success_rate": statistics.success_rate,
        "goodput": statistics.goodput,
        "goodput_share": statistics.goodput_share,
        "session_goodput_share": statistics.session_goodput_share,
        "output_goodput": rate(good_answers),
        "total_token_goodput": rate(sum_of((statistics.good_input_tokens, good_answers))),
        **statistics.latencies,
        **{name: each.of_requests(records, duration) for name, each in registered().items() if each.of_requests},
    }


def worst_value(name: str, by_class: Sequence[Mapping[str, float | None]]) -> float | None:
    """Return the worst value of a metric over several groups of requests; None if one of them has no value."""
    values = [metrics.get(name) for metrics in by_class]
    present = [value for value in values if value is not None]
    if not present or len(present) != len(values):
        return None
    return min(present) if metric(name).direction is Direction.MAXIMIZE else max(present)


def repeat_of(traffic: Traffic, records: Sequence[RequestRecord], index: int) -> Repeat:
    """Return repeat `index` of traffic from its records."""
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
