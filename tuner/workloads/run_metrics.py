"""Names the metrics of a run: over all requests, `CLASS.name` by class, `worst.name` and `client.name`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from records.metrics import Direction, metric, registered
from records.trials import Repeat
from tuner.workloads.results import RequestRecord, RequestSlo, Window, latency_statistics, stable_middle, sum_of
from tuner.workloads.traffic import Traffic

MetricValues = dict[str, float | None]


def run_metrics(
    records: Sequence[RequestRecord],
    names: Iterable[str],
    slos: Mapping[str, RequestSlo] | None = None,
    users: int | None = None,
) -> MetricValues:
    """Return a run's metrics under the names of `records.metrics`.

    `worst.name` is the worst value over the classes with offered requests; None if one of them has no value.
    `client.name` is a latency over all classes, counted from sending.

    Args:
        records: one for each offered request.
        names: the classes, including those without requests.
        slos: the SLO of each class; in a class without an SLO, every completed request is good.
        users: users of a closed loop; None for an open loop.
    """
    window, duration = stable_middle(records, users), _duration_s(records)
    overall = _metrics_of(records, slos, window, duration)
    metrics, offered = dict(overall), list[MetricValues]()
    for name in names:
        group = [record for record in records if record.name == name]
        own = overall if len(group) == len(records) else _metrics_of(group, slos, window, duration)
        metrics |= {f"{name}.{key}": value for key, value in own.items()}
        offered += [own] if group else []
    metrics |= {f"worst.{key}": worst_value(key, offered) for key in overall}
    client = latency_statistics(records, window, since_sent=True)
    return metrics | {f"client.{key}": value for key, value in client.items()}


def _duration_s(records: Sequence[RequestRecord]) -> float | None:
    """Return the seconds from the start of the run to the end of its last request; None if none ended."""
    return max((record.end_s for record in records if record.end_s is not None), default=None)


def _metrics_of(
    group: Sequence[RequestRecord], slos: Mapping[str, RequestSlo] | None, window: Window | None, duration: float | None
) -> MetricValues:
    completed = [record for record in group if record.completed]
    good = [each for each in group if slos.get(each.name, RequestSlo()).met(each)] if slos else None
    sessions, kept = (
        Counter(each.session for each in part or () if each.session is not None) for part in (group, good)
    )
    answers, good_answers = (sum_of(each.output_tokens for each in part or ()) for part in (completed, good))
    prompts, good_prompts = (sum_of(each.input_tokens for each in part or ()) for part in (completed, good))

    def rate(count: float | None) -> float | None:
        return None if count is None or not duration or not completed else count / duration

    def of_good(count: float, offered: float | None) -> float | None:
        return count / offered if good is not None and offered else None

    return {
        "output_throughput": rate(answers),
        "total_token_throughput": rate(sum_of((prompts, answers))),
        "request_throughput": rate(len(completed)),
        "success_rate": len(completed) / len(group) if group else None,
        "goodput": of_good(len(good or ()), duration),
        "goodput_share": of_good(len(good or ()), len(group)),
        "session_goodput_share": of_good(sum(kept[each] == count for each, count in sessions.items()), len(sessions)),
        "output_goodput": None if good is None else rate(good_answers),
        "total_token_goodput": None if good is None else rate(sum_of((good_prompts, good_answers))),
        **latency_statistics(group, window),
        **{name: each.of_requests(group, duration) for name, each in registered().items() if each.of_requests},
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
    completed = sum(record.completed for record in records)
    return Repeat(
        index=index,
        seed=traffic.repeat_seed(index),
        offered=len(records),
        completed=completed,
        failed=len(records) - completed,
        duration_s=_duration_s(records),
        metrics=run_metrics(records, traffic.sent_classes, slos, traffic.users),
    )
