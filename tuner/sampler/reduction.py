"""Which flags of a configuration have the smallest effects: the order in which they can be reset to their defaults.

Flags are reset one after another, each time the one whose loss is expected to be smallest (backward elimination). The
expectation is the surrogate's: the measured trials, with the predictions as its prior mean. It only proposes; the
finals of the study decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from tuner.sampler.acquisition.candidates import CandidateSpace
from tuner.sampler.flag_effects import reset_to_default
from tuner.sampler.surrogate.encoding import Params
from tuner.sampler.surrogate.model import Surrogate

SPREADS = 2.5
"""Standard deviations within which an expected loss may be luck."""

LARGEST_NOISE = 0.02
"""Largest expected loss of the score's logarithm that counts as noise, also where a measurement is noisier."""

LEAST_FEASIBLE = 0.5
"""Least probability that a reduced configuration runs and meets the SLOs, unless the whole one's is lower."""


@dataclass(frozen=True)
class ReductionStep:
    """One flag that is reset.

    Args:
        name: of the parameter.
        loss: expected difference of the score's logarithm between the whole configuration and the one that lacks this
            flag and those of all earlier steps; negative if it is better.
        spread: its standard deviation.
    """

    name: str
    loss: float
    spread: float


@dataclass(frozen=True)
class Elimination:
    """The flags of a configuration in the order of their resetting.

    Args:
        steps: without the flags that cannot be reset: a rule, a failure or an SLO needs them.
        noise: standard deviation of the logarithm of a measured score.
    """

    steps: tuple[ReductionStep, ...]
    noise: float

    def unproved(self) -> list[str]:
        """Return the flags whose joint effect may be noise.

        The expected loss of all of them together is within the noise, or within `SPREADS` standard deviations: the
        configuration was picked for its measurement, whose luck the model ascribes to its flags.
        """
        bound = min(self.noise, LARGEST_NOISE)
        return [
            step.name for step in takewhile(lambda step: step.loss <= max(bound, SPREADS * step.spread), self.steps)
        ]


def eliminate(space: CandidateSpace, surrogate: Surrogate, params: Params, defaults: Params) -> Elimination:
    """Return the order in which the flags of a configuration are reset.

    Args:
        space: the search space with its conditions and rules.
        surrogate: the model, to be used within `single_blas_thread`.
        params: the whole configuration.
        defaults: the values of all default parameters.
    """
    least = min(LEAST_FEASIBLE, 0.9 * float(surrogate.probability_of_feasibility([params])[0]))
    steps: list[ReductionStep] = []
    current = params
    while True:
        without = reset_to_default(space, current, defaults)
        allowed = {name: reduced for name, reduced in without.items() if space.allows(reduced)}
        configs = list(allowed.values())
        if not configs:
            return Elimination(tuple(steps), surrogate.noise)
        losses, spreads = surrogate.score_losses(params, configs)
        losses[surrogate.probability_of_feasibility(configs) < least] = np.inf
        best = int(np.argmin(losses))
        if not np.isfinite(losses[best]):
            return Elimination(tuple(steps), surrogate.noise)
        steps.append(ReductionStep(list(allowed)[best], float(losses[best]), float(spreads[best])))
        current = configs[best]
