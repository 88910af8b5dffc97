"""The world that simulated measurements come from: other than the one that the simulator's stored parameters describe.

Every fitted parameter is multiplied by exp(N(0, spread)), and every choice of every search parameter has an effect of
its own, exp(N(0, choices)) on throughput and its inverse on latencies, that no physics knows of. A number has five
such effects along its range, and between them it is interpolated. All of it is drawn from one seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from benchmarks.search.problems.problem import Config, generator
from search_spaces import Parameter, ParameterValue, ResolvedSpace
from storage.metrics import Direction, metric
from tuner.engines.simulator.parameters import Parameters, documented_parameters

KNOTS = 5
MOST_SHARE = 0.98
"""What a parameter that is a share of a data sheet's figure may come to."""
SHARES = ("success_rate", "goodput_share")
TTFT_NOISE = 0.05
"""Standard deviation of a TTFT's logarithm beyond that of the run: the recorded defaults differ by 5 to 10 %."""
Metrics = Mapping[str, float | None]


@dataclass(frozen=True)
class World:
    """How far measurements are from predictions. `noise` is the standard deviation of a run's speed, as a logarithm."""

    seed: int = 1
    spread: float = 0.2
    choices: float = 0.05
    noise: float = 0.03

    def parameters(self, stored: Parameters, card: str) -> Parameters:
        """Return the simulator's parameters in this world."""
        fitted = {name: entry for name, entry in documented_parameters().items() if str(entry["source"]) == "fitted"}
        changes = {}
        for each in fields(Parameters):
            if each.name in fitted:
                drawn = generator(self.seed, card, each.name).standard_normal()
                value = getattr(stored, each.name) * math.exp(self.spread * drawn)
                changes[each.name] = min(MOST_SHARE, value) if fitted[each.name]["unit"] == "share" else value
        return replace(stored, **changes)

    def speed(self, space: ResolvedSpace, config: Config, name: str) -> float:
        """Return the factor on throughput that the choices of a complete configuration have in the problem `name`."""
        total = 0.0
        for parameter in space.parameters:
            if parameter.name in config:
                total += self._effect(parameter, config[parameter.name], name)
        return math.exp(self.choices * total)

    def _effect(self, parameter: Parameter, value: ParameterValue, name: str) -> float:
        if parameter.choices:
            return float(generator(self.seed, name, parameter.name, value).standard_normal())
        low, high = parameter.spec.low, parameter.spec.high
        assert low is not None
        assert high is not None
        assert isinstance(value, int | float)
        knots = generator(self.seed, name, parameter.name).standard_normal(KNOTS)
        place = math.log(value / low) / math.log(high / low) if parameter.spec.log else (value - low) / (high - low)
        return float(np.interp(place, np.linspace(0.0, 1.0, KNOTS), knots))

    def measured(self, metrics: Metrics, random: np.random.Generator) -> dict[str, float | None]:
        """Return what a measurement shows of true metrics."""
        run = math.exp(self.noise * random.standard_normal())
        own = math.exp((TTFT_NOISE if self.noise else 0.0) * random.standard_normal())
        faster = sped_up(metrics, run)
        return {
            name: value * own if value is not None and name.endswith("ttft_ms") else value
            for name, value in faster.items()
        }


def sped_up(metrics: Metrics, factor: float) -> dict[str, float | None]:
    """Return the metrics of a server that is so much faster; shares of requests stay as they are."""
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        if value is None or name.rpartition(".")[2] in SHARES:
            found[name] = value
        else:
            found[name] = value * factor if metric(name).direction is Direction.MAXIMIZE else value / factor
    return found
