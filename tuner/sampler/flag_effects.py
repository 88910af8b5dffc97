"""Flag effects: the score of a configuration relative to the same configuration with one parameter at its default.

One parameter at a time is reset. An interaction of two parameters therefore counts for both, and the product of the
ratios differs from the ratio of the whole configuration. (Fawcett and Hoos, "Analysing differences between algorithm
configurations through ablation", Journal of Heuristics 22, 2016, reset one after another; here each ratio answers
whether the flag is needed.) Every objective has its own Gaussian process, because their noise differs. The score is the
weighted sum of the gains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.confidence import normal_factor
from tuner.sampler.acquisition.candidates import CandidateSpace
from tuner.sampler.surrogate.encoding import Encoder, Params, Vector
from tuner.sampler.surrogate.gaussian_process import GaussianProcess
from tuner.sampler.surrogate.history import History, ObjectiveScale
from tuner.sampler.surrogate.kernel_priors import WITHOUT_PRIOR

INTERVAL_FACTOR = 2.0
"""Factor on the process's standard deviations, whose own 95 % intervals are too narrow."""


@dataclass(frozen=True)
class FlagEffect:
    """The effect of one parameter.

    Args:
        name: of the parameter.
        value: in the configuration.
        default: what it is reset to; None also where it does not apply then.
        ratio: score of the configuration over the score with the parameter at its default.
        low: lower end of the 95 % confidence interval of the ratio.
        high: its upper end.
        metrics: the same ratio of each objective's value, by metric.
        needed: probability that the configuration with the parameter at its default fails or violates an SLO.
        trials: number of measured trials that the estimate rests on.
        rounds: number of rounds that measured the ratio; 0: it is estimated.
    """

    name: str
    value: Any
    default: Any
    ratio: float
    low: float
    high: float
    metrics: Mapping[str, float]
    needed: float
    trials: int
    rounds: int = 0


@dataclass(frozen=True)
class ScaledObjective:
    """An objective: the name of its metric, and the scale of its values."""

    metric: str
    scale: ObjectiveScale


def reset_to_default(space: CandidateSpace, params: Params, defaults: Params) -> dict[str, Params]:
    """Return, for each parameter that differs from its default, the configuration with that parameter reset.

    Conditional parameters that the default makes inactive are left out; those that it activates get their own
    defaults. A parameter that `defaults` lacks is not reset. Rules are not checked: a configuration that breaks a rule
    shows that the parameter is needed.

    Args:
        space: the search space with its conditions.
        params: the configuration.
        defaults: the values of all default parameters.
    """
    without: dict[str, Params] = {}
    for name, default in defaults.items():
        if name not in params or (params[name] == default and type(params[name]) is type(default)):
            continue
        drawn = space.draw(np.random.default_rng(0), {**defaults, **params, name: default}, checked=False)
        assert drawn is not None
        without[name] = drawn
    return without


def gain_differences(
    encoder: Encoder, history: History, objectives: Sequence[ScaledObjective], configs: Sequence[Params]
) -> tuple[list[Vector], list[Vector]]:
    """Return by how much the gains of the first configuration exceed those of each other one, from measured trials.

    Returns:
        For each objective the posterior mean and standard deviation of the differences, without noise; each of shape
        (configurations - 1,).
    """
    measured, inputs = encoder.encode(history.measured), encoder.encode(configs)
    means, spreads = [], []
    for index, objective in enumerate(objectives):
        gains = np.array([[objective.scale.gain(values[index])] for values in history.values])
        process = GaussianProcess(encoder.columns, measured, gains, np.zeros_like(gains), WITHOUT_PRIOR)
        mean, spread = process.predict_differences(inputs, np.zeros((len(configs), 1)))
        means.append(mean[:, 0])
        spreads.append(spread[:, 0])
    return means, spreads


def flag_effects(
    encoder: Encoder,
    history: History,
    objectives: Sequence[ScaledObjective],
    params: Params,
    without: Mapping[str, Params],
    feasible: Vector,
) -> list[FlagEffect]:
    """Return the effect of each parameter of a configuration, the highest ratio first.

    With the difference δ of the scores, posterior mean μ and standard deviation σ, the ratio is exp(μ) and its interval
    exp(μ ± z · 2 σ), with the normal quantile z.

    Args:
        encoder: of the space's parameters.
        history: the measured trials; no prediction is used.
        objectives: in the order of the measured values.
        params: the configuration.
        without: the configuration with each parameter reset, see `reset_to_default`; at least one.
        feasible: probability of feasibility of each of those, shape (parameters,).
    """
    means, spreads = gain_differences(encoder, history, objectives, [params, *without.values()])
    weights = [objective.scale.weight for objective in objectives]
    score = np.sum([weight * mean for weight, mean in zip(weights, means, strict=True)], axis=0)
    spread = np.sqrt(np.sum([(weight * each) ** 2 for weight, each in zip(weights, spreads, strict=True)], axis=0))
    width = INTERVAL_FACTOR * normal_factor()
    effects = [
        FlagEffect(
            name,
            params[name],
            other.get(name),
            math.exp(score[index]),
            math.exp(score[index] - width * spread[index]),
            math.exp(score[index] + width * spread[index]),
            {
                each.metric: math.exp(each.scale.sign * mean[index])
                for each, mean in zip(objectives, means, strict=True)
            },
            float(1.0 - feasible[index]),
            len(history.measured),
        )
        for index, (name, other) in enumerate(without.items())
    ]
    return sorted(effects, key=lambda each: (-each.ratio, each.name))
