"""The place of a run on the roofline of its card (Williams, Waterman and Patterson 2009), simulated or measured.

    attainable FLOP/s = min(peak, intensity × bandwidth)      intensity = FLOP / bytes of memory traffic

Below the ridge, peak / bandwidth, memory bounds the run; above it, arithmetic does. Peak is the card's 16-bit
arithmetic.

The arithmetic and the memory traffic of a token are those of the predictions (`TokenWork`); the counts are measured.
With output tokens O, input tokens I and requests R per second, the prefix cache's share h of the input, and the means
of TTFT and end-to-end latency, all over completed requests:

    decodes  = O - R                             tokens after the first one of each request, per second
    batch    = R (E2EL - TTFT)                   mean number of decoding requests (Little, 1961: L = lambda W)
    steps    = decodes / batch                   a step gives each of them a token
    context  = decodes (I / R + O / (2 R))       the prompt and, on average, half of the answer
    pairs    = (1 - h²) I² / (2 R)               of the prompts' attention, without the cached beginnings
    FLOP/s   = TokenWork.flops(decodes + (1 - h) I, O, pairs + context)
    bytes/s  = TokenWork.bytes(steps, context, batch)

Prompts and answers count with their mean lengths. Work for failed and preempted requests does not count. Steps without
a decode do not count either, so that a batch below `LEAST_BATCH` has no point.
"""

from __future__ import annotations

from dataclasses import dataclass

from records.trials import TrialOutcome
from search_spaces import HardwareProfile
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.metrics import SimulatedRun

_TERA = 1e12
_GIGA = 1e9


@dataclass(frozen=True)
class Roofline:
    """A whole run on its card's roofline.

    Attributes:
        intensity: FLOP per byte of memory traffic.
        ridge: the intensity at which both bounds meet, in FLOP per byte.
        roof: the bound that holds: `memory` or `arithmetic`.
        flops: FLOP per second of the time in which the engine was busy.
        share: `flops` as a share of the attainable FLOP/s by the card's data sheet.
    """

    intensity: float
    ridge: float
    roof: str
    flops: float
    share: float


def roofline_of(run: SimulatedRun) -> Roofline:
    """Return a run's place on the roofline; the module's docstring has the equation."""
    gpus = run.config.parallel.replica_gpus
    return placed(run.config.card, run.flops / gpus, run.bytes / gpus, run.trace.busy_s)


def placed(card: HardwareProfile, flops: float, traffic: float, seconds: float) -> Roofline:
    """Return the place of work on the roofline of a card.

    Args:
        card: the card.
        flops: FLOP of the work.
        traffic: bytes of memory traffic of the work.
        seconds: in which the card did it.
    """
    peak = card.tflops["float16"] * _TERA
    bandwidth = (card.bandwidth_gbs or 1.0) * _GIGA
    intensity = flops / traffic if traffic else 0.0
    ridge = peak / bandwidth
    rate = flops / seconds if seconds else 0.0
    attainable = min(peak, intensity * bandwidth)
    roof = "memory" if intensity < ridge else "arithmetic"
    return Roofline(intensity, ridge, roof, rate, rate / attainable if attainable else 0.0)


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
    traffic = work.bytes(decodes / batch, decodes * context, batch)
    return MeasuredPoint(
        placed(config.card, flops / config.parallel.gpus, traffic / config.parallel.gpus, 1.0), None, batch, context
    )
