"""Where a run stands on the roofline of its card (Williams, Waterman and Patterson, "Roofline", CACM 2009).

    attainable FLOP/s = min(peak, intensity × bandwidth)      intensity = FLOP / bytes of memory traffic

Below the ridge, peak / bandwidth, memory bounds the run; above it, arithmetic does. Peak is the card's 16-bit
arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces import HardwareProfile
from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.simulated_run import SimulatedRun

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


def roofline_of(config: ServeConfig, run: SimulatedRun) -> Roofline:
    """Return a run's place on the roofline; the module's docstring has the equation."""
    gpus = config.parallel.replica_gpus
    return placed(config.card, run.flops / gpus, run.bytes / gpus, run.trace.busy_s)


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
