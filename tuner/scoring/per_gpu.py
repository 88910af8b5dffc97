"""Throughput for each GPU of a server, which compares servers of different size."""

from __future__ import annotations

from collections.abc import Mapping

from storage.metrics import PER_GPU


def per_gpu_metrics(metrics: Mapping[str, float | None], gpus: int) -> dict[str, float | None]:
    """Return the metrics of `storage.metrics.PER_GPU`: a rate divided by the GPUs of the server.

    A metric is absent where its rate is absent from `metrics`, and None where the rate is None.

    Args:
        metrics: of a benchmark, by the names of `storage.metrics`.
        gpus: that the server uses, at least 1.
    """
    found = {name: metrics[rate] for name, rate in PER_GPU.items() if rate in metrics}
    return {name: None if rate is None else rate / gpus for name, rate in found.items()}
