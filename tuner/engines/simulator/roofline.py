"""Which roof holds, arithmetic or memory, and how near a run came to it (Williams et al., "Roofline", 2009)."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.configured_server import SimulatedRun

_TERA = 1e12
_GIGA = 1e9


@dataclass(frozen=True)
class Roofline:
    """Of a whole run. `intensity` and `ridge` in FLOP a byte of memory traffic, `flops` a second of busy time.

    `roof` is "memory" below the ridge and "arithmetic" above it; `share` of that roof, by the card's data sheet, was
    reached.
    """

    intensity: float
    ridge: float
    roof: str
    flops: float
    share: float


def roofline_of(config: ServeConfig, run: SimulatedRun) -> Roofline:
    """Return where a run stands: what its tokens need, by the time in which the engine was busy."""
    peak = config.card.tflops["float16"] * _TERA
    bandwidth = (config.card.bandwidth_gbs or 1.0) * _GIGA
    intensity = run.flops / run.bytes if run.bytes else 0.0
    ridge = peak / bandwidth
    reached = run.flops / run.trace.busy_s if run.trace.busy_s else 0.0
    roof = min(peak, intensity * bandwidth)
    name = "memory" if intensity < ridge else "arithmetic"
    return Roofline(intensity, ridge, name, reached, reached / roof if roof else 0.0)
