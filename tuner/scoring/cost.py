"""Costs of tokens at a price of the GPUs, and the throughput for each GPU."""

from __future__ import annotations

from collections.abc import Mapping

from records.metrics import PER_GPU

_SOURCES = {
    "cost_per_million_output_tokens": ("output_goodput", "output_throughput"),
    "cost_per_million_total_tokens": ("total_token_goodput", "total_token_throughput"),
}
"""Each cost and the token throughputs that it may follow from, in tokens per second; the first one that exists does."""


def throughput_behind(name: str) -> str:
    """Return the rate that a cost or a rate for each GPU follows from, with its prefix; else the name.

    For a cost it is the token throughput of completed requests.
    """
    prefix, dot, base = name.rpartition(".")
    rate = _SOURCES[base][-1] if base in _SOURCES else PER_GPU.get(base, base)
    return f"{prefix}{dot}{rate}"


def token_costs(metrics: Mapping[str, float | None], price_per_hour: float | None) -> dict[str, float | None]:
    """Return the costs per million tokens of one benchmark; empty without a price.

    With price p of the GPUs per hour and r tokens per second, a million tokens cost

        c = 10^6 p / (3600 r)

    With requests that have SLOs, r counts only the tokens of those that met theirs; otherwise of all completed ones.
    A cost is None where r is unknown or 0.

    Source: p / 3600 is the price of a second, in which r tokens are served. Goodput in place of throughput as in Zhong
    et al., DistServe (OSDI 2024), which maximises the goodput of each GPU because it sets the cost of a request within
    its SLO.

    Args:
        metrics: of the benchmark, by the names of `records.metrics`.
        price_per_hour: of all GPUs that the server uses, in units of a currency; None: unknown.
    """
    if price_per_hour is None:
        return {}
    return {name: _cost(_rate(metrics, sources), price_per_hour) for name, sources in _SOURCES.items()}


def _rate(metrics: Mapping[str, float | None], sources: tuple[str, ...]) -> float | None:
    return next((rate for name in sources if (rate := metrics.get(name)) is not None), None)


def _cost(rate: float | None, price_per_hour: float) -> float | None:
    return 1e6 * price_per_hour / (3600.0 * rate) if rate else None


def per_gpu_metrics(metrics: Mapping[str, float | None], gpus: int) -> dict[str, float | None]:
    """Return the metrics of `records.metrics.PER_GPU`: a rate divided by the GPUs of the server.

    A metric is absent where its rate is absent from `metrics`, and None where the rate is None.
    """
    found = {name: metrics[rate] for name, rate in PER_GPU.items() if rate in metrics}
    return {name: None if rate is None else rate / gpus for name, rate in found.items()}
