"""A new metric, input throughput: its definition and its computation. `metric.md` says where each part goes."""

from __future__ import annotations

from collections.abc import Sequence

from records.metrics import Direction, Metric
from tuner.workloads.results import RequestRecord


def input_throughput(records: Sequence[RequestRecord], duration_s: float | None) -> float | None:
    """Return input tokens of completed requests per second; None if the duration or a token count is absent."""
    tokens = [record.input_tokens for record in records if record.completed]
    if not duration_s or not tokens or None in tokens:
        return None
    return sum(count for count in tokens if count is not None) / duration_s


INPUT_THROUGHPUT = Metric(
    "input_throughput",
    "tok/s",
    Direction.MAXIMIZE,
    "Input tokens of completed requests divided by the duration of the benchmark, in tokens per second.",
    input_throughput,
)
