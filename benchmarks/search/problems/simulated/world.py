"""The world of simulated measurements: the simulator with perturbed parameters.

Each fitted parameter is multiplied by exp(N(0, spread)). Each choice of each search parameter multiplies throughput by
exp(N(0, choices)) and divides latencies by it; the simulator does not model this effect. A numeric parameter has five
such effects along its range, with linear interpolation between them. One seed determines every factor.
"""

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.search.problems.problem import MetricsByName, seeded_generator
from records.metrics import Direction, metric
from records.trials import Config
from search_spaces import Parameter, ParameterValue, ResolvedSpace
from tuner.engines.simulator.parameters import Parameters, perturbed

EFFECT_KNOTS = 5
"""Number of effects along the range of a numeric parameter."""
UNSCALED_METRICS = ("success_rate", "goodput_share")
TTFT_NOISE = 0.05
"""Standard deviation of a TTFT's logarithm beyond the run's own: the recorded defaults differ by 5 to 10 %."""


@dataclass(frozen=True)
class World:
    """The perturbation of the simulator.

    Attributes:
        seed: determines every factor.
        spread: standard deviation of a fitted parameter's logarithm.
        choices: standard deviation of the logarithm of a choice's effect.
        noise: standard deviation of the logarithm of a run's speed.
    """

    seed: int = 1
    spread: float = 0.2
    choices: float = 0.05
    noise: float = 0.03

    def parameters(self, stored: Parameters, card: str) -> Parameters:
        """Return the perturbed parameters of the simulator for a card."""
        return perturbed(stored, card, self.seed, self.spread)

    def speed(self, space: ResolvedSpace, config: Config, problem: str) -> float:
        """Return the product of the effects of a complete configuration's choices on throughput.

        Args:
            space: the search space.
            config: the configuration, with a value for each parameter that counts.
            problem: the problem's name; each problem has effects of its own.
        """
        total = 0.0
        for parameter in space.parameters:
            if parameter.name in config:
                total += self._effect(parameter, config[parameter.name], problem)
        return math.exp(self.choices * total)

    def _effect(self, parameter: Parameter, value: ParameterValue, problem: str) -> float:
        if parameter.choices:
            return float(seeded_generator(self.seed, problem, parameter.name, value).standard_normal())
        low, high = parameter.spec.low, parameter.spec.high
        assert low is not None
        assert high is not None
        assert isinstance(value, int | float)
        knots = seeded_generator(self.seed, problem, parameter.name).standard_normal(EFFECT_KNOTS)
        place = math.log(value / low) / math.log(high / low) if parameter.spec.log else (value - low) / (high - low)
        return float(np.interp(place, np.linspace(0.0, 1.0, EFFECT_KNOTS), knots))

    def measured(self, metrics: MetricsByName, random: np.random.Generator) -> dict[str, float | None]:
        """Return true metrics with the noise of a measurement."""
        run_factor = math.exp(self.noise * random.standard_normal())
        ttft_factor = math.exp((TTFT_NOISE if self.noise else 0.0) * random.standard_normal())
        return {
            name: value * ttft_factor if value is not None and name.endswith("ttft_ms") else value
            for name, value in sped_up(metrics, run_factor).items()
        }


def sped_up(metrics: MetricsByName, factor: float) -> dict[str, float | None]:
    """Return the metrics of a server that is faster by a factor; shares of requests stay unchanged."""
    scaled: dict[str, float | None] = {}
    for name, value in metrics.items():
        if value is None or name.rpartition(".")[2] in UNSCALED_METRICS:
            scaled[name] = value
        else:
            scaled[name] = value * factor if metric(name).direction is Direction.MAXIMIZE else value / factor
    return scaled
