"""Where a measured run stands on the roofline of its card, from what its clients and its server counted.

The arithmetic and the memory traffic of a token are those of the predictions (`TokenWork`); the counts are measured.
With output tokens O, input tokens I and requests R per second, the prefix cache's share h of the input, and the means
of TTFT and end-to-end latency, all over completed requests:

    decodes  = O - R                             tokens after the first one of each request, per second
    batch    = R (E2EL - TTFT)                   mean number of decoding requests (Little, 1961: L = lambda W)
    steps    = decodes / batch                   a step gives each of them a token
    context  = decodes (I / R + O / (2 R))       the prompt and, on average, half of the answer
    pairs    = (1 - h²) I² / (2 R)               of the prompts' attention, without the cached beginnings
    FLOP/s   = TokenWork.flops(decodes + (1 - h) I, O, pairs + context)
    bytes/s  = TokenWork.bytes(steps, context)

Prompts and answers count with their mean lengths. Work for failed and preempted requests does not count. Steps without
a decode do not count either, so that a batch below `LEAST_BATCH` has no point.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.records import TrialOutcome
from tuner.engines.simulator.configured_server import ConfiguredServer
from tuner.engines.simulator.roofline import Roofline, placed

LEAST_BATCH = 3.0
"""Least mean number of decoding requests. With Poisson arrivals no request decodes in exp(-3) = 5 % of the time."""

FIGURES = ("output_throughput", "total_token_throughput", "request_throughput", "mean_ttft_ms", "mean_e2el_ms")


@dataclass(frozen=True)
class MeasuredPoint:
    """A measured run on the roofline.

    Attributes:
        roofline: its place; None if a figure is absent.
        lacking: why there is no place; None if there is one.
        batch: mean number of decoding requests; None without a place.
        context: mean tokens of KV cache that a decoded token reads; None without a place.
    """

    roofline: Roofline | None = None
    lacking: str | None = None
    batch: float | None = None
    context: float | None = None


def measured_point(server: ConfiguredServer, outcome: TrialOutcome) -> MeasuredPoint:
    """Return the place of a measured run; the module's docstring has the equations.

    Args:
        server: of the same command, for its work per token.
        outcome: the medians of its benchmarks count.
    """
    config = server.config
    values = {name: outcome.metric(name) for name in FIGURES}
    absent = [name for name, value in values.items() if value is None]
    hits = 0.0 if not config.prefix_caching else None if outcome.server is None else outcome.server.prefix_hit_rate
    if hits is None:
        absent.append("prefix_hit_rate")
    if absent:
        return MeasuredPoint(lacking=f"{', '.join(absent)} not recorded")
    if config.speculation is not None:
        return MeasuredPoint(lacking="it checks draft tokens, whose number is not recorded")
    output, total, requests, ttft_ms, e2el_ms = (value or 0.0 for value in values.values())
    decodes, prompts = output - requests, total - output
    batch = requests * (e2el_ms - ttft_ms) / 1000.0
    if decodes <= 0:
        return MeasuredPoint(lacking="its answers have a single token")
    if batch < LEAST_BATCH:
        return MeasuredPoint(lacking=f"{batch:.2g} requests decode on average, fewer than {LEAST_BATCH:g}")
    context = (prompts + output / 2.0) / requests
    share = 1.0 - (hits or 0.0)
    pairs = share * (2.0 - share) * prompts * prompts / (2.0 * requests)
    work = server.work
    flops = work.flops(decodes + share * prompts, output, pairs + decodes * context)
    traffic = work.bytes(decodes / batch, decodes * context)
    return MeasuredPoint(
        placed(config.card, flops / config.parallel.gpus, traffic / config.parallel.gpus, 1.0), None, batch, context
    )
