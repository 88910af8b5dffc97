"""Which flags of a configuration have the smallest effects: the order in which they can be reset to their defaults.

Flags are reset one after another, each time the one whose loss is expected to be smallest (backward elimination). First
go the flags that are predicted to bring nothing: what the model ascribes to them is mostly the luck of the measurement
for which the configuration was picked. For the others the expectation is the surrogate's: the measured trials, with the
predictions as its prior mean. It only proposes; the finals of the study decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from tuner.sampler.acquisition.candidates import CandidateSpace
from tuner.sampler.flag_effects import reset_to_default
from tuner.sampler.surrogate.encoding import Params, Vector
from tuner.sampler.surrogate.model import Surrogate

SPREADS = 2.5
"""Standard deviations within which an expected loss may be luck."""

LARGEST_NOISE = 0.02
"""Largest expected loss of the score's logarithm that counts as noise, also where a measurement is noisier."""

IDLE_LOSS = 0.003
"""Largest predicted loss of the score's logarithm of flags that together bring nothing."""

LEAST_FEASIBLE = 0.5
"""Least probability that a reduced configuration runs and meets the SLOs, unless the whole one's is lower."""


LossesOf = Callable[[Params, Sequence[Params]], tuple[Vector, Vector]]
"""Mean and standard deviation of the losses of some configurations relative to a whole one."""


@dataclass(frozen=True)
class ReductionStep:
    """One flag that is reset.

    Args:
        name: of the parameter.
        loss: expected difference of the score's logarithm between the configuration without the idle flags and the one
            that lacks this flag and those of all earlier steps, too; negative if it is better. Of an idle flag it is
            the predicted loss.
        spread: its standard deviation; 0 of an idle flag.
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
        idle: how many of the first steps are predicted to bring nothing together; 0 without predictions.
    """

    steps: tuple[ReductionStep, ...]
    noise: float
    idle: int = 0

    def unproved(self) -> list[str]:
        """Return the flags whose joint effect may be noise, the idle ones first.

        The expected loss of all others together is within the noise, or within `SPREADS` standard deviations: the
        configuration was picked for its measurement, whose luck the model ascribes to its flags.
        """
        bound = min(self.noise, LARGEST_NOISE)
        others = takewhile(lambda step: step.loss <= max(bound, SPREADS * step.spread), self.steps[self.idle :])
        return [step.name for step in (*self.steps[: self.idle], *others)]


def eliminate(space: CandidateSpace, surrogate: Surrogate, params: Params, defaults: Params) -> Elimination:
    """Return the order in which the flags of a configuration are reset.

    Args:
        space: the search space with its conditions and rules.
        surrogate: the model, to be used within `single_blas_thread`.
        params: the whole configuration.
        defaults: the values of all default parameters.
    """
    chain = _Chain(space, surrogate, params, defaults)
    idle: list[ReductionStep] = []
    current = params
    if surrogate.has_predictions:
        for step, reduced in chain.steps(params, surrogate.predicted_losses):
            if step.loss > IDLE_LOSS:
                break
            idle.append(step)
            current = reduced
    others = [step for step, _ in chain.steps(current, surrogate.score_losses)]
    return Elimination((*idle, *others), surrogate.noise, len(idle))


class _Chain:
    """Resets the flags of a configuration one after another."""

    def __init__(self, space: CandidateSpace, surrogate: Surrogate, params: Params, defaults: Params) -> None:
        self._space, self._surrogate, self._defaults = space, surrogate, defaults
        self._least = min(LEAST_FEASIBLE, 0.9 * float(surrogate.probability_of_feasibility([params])[0]))

    def steps(self, whole: Params, losses_of: LossesOf) -> Iterator[tuple[ReductionStep, Params]]:
        """Yield each step with the configuration after it, until a rule, a failure or an SLO needs what remains."""
        current = whole
        while True:
            without = reset_to_default(self._space, current, self._defaults)
            allowed = {name: reduced for name, reduced in without.items() if self._space.allows(reduced)}
            configs = list(allowed.values())
            if not configs:
                return
            losses, spreads = losses_of(whole, configs)
            losses[self._surrogate.probability_of_feasibility(configs) < self._least] = np.inf
            best = int(np.argmin(losses))
            if not np.isfinite(losses[best]):
                return
            current = configs[best]
            yield ReductionStep(list(allowed)[best], float(losses[best]), float(spreads[best])), current
