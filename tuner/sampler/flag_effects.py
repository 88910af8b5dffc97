"""What each parameter of a configuration earns: its figures beside those of the same with the parameter at its default.

One parameter at a time is put back, so what two earn only together is counted for both, and the figures do not multiply
to the whole (Fawcett and Hoos, "Analysing differences between algorithm configurations through ablation", Journal of
Heuristics 22, 2016, put them back one after another; here each stands for the question whether the flag is needed).
Every objective has a process of its own, because some are far noisier than others; the score is their weighted sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from tuner.sampler.acquisition.candidates import CandidateSpace
from tuner.sampler.acquisition.selection import UNPREDICTED_SCALES
from tuner.sampler.surrogate.encoding import Encoder, Params, Vector
from tuner.sampler.surrogate.gaussian_process import GaussianProcess
from tuner.sampler.surrogate.history import History, Scale

CONFIDENCE = 0.95
WIDENED = 2.0
"""Factor on the model's own standard deviations: by themselves its intervals of 95 % held 74 to 98 % of the true
ratios, by problem, these 91 to 100 % (benchmarks/search/flag_effects.py, docs/design/sampler.md)."""


@dataclass(frozen=True)
class FlagEffect:
    """What a parameter earns.

    `ratio`, within `low` and `high`, is the configuration's score over that without it, `metrics` the same of each
    objective's value. `needed` is the probability that the configuration without it fails or breaks an SLO. The
    estimate rests on `trials` measured trials.
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


@dataclass(frozen=True)
class ScaledObjective:
    """An objective: the name of its metric, and the scale that makes a gain of its values."""

    metric: str
    scale: Scale


def reset_to_default(space: CandidateSpace, params: Params, defaults: Params) -> dict[str, Params]:
    """Return the configuration with each parameter that differs from its default put back to it, by parameter.

    A parameter that only counts beside a certain choice, and is lacking in the defaults, has nothing to be put back to;
    it goes with that choice. What the default itself opens gets its default too. Rules are not asked: what breaks one
    tells as well what the parameter is needed for.
    """
    found: dict[str, Params] = {}
    for name, default in defaults.items():
        if name not in params or (params[name] == default and type(params[name]) is type(default)):
            continue
        drawn = space.draw(np.random.default_rng(0), {**defaults, **params, name: default}, checked=False)
        assert drawn is not None
        found[name] = drawn
    return found


def contrast(
    encoder: Encoder, history: History, aims: Sequence[ScaledObjective], configs: Sequence[Params]
) -> tuple[list[Vector], list[Vector]]:
    """Return how much better the first of some configurations is than each of the others, by the measured trials.

    Returns:
        For each objective mean and standard deviation of the difference of the gains, without noise; each of shape
        (configurations - 1,).
    """
    owners, measured = (encoder.owner, encoder.effect_owner), encoder.both(history.measured)
    rows, effects = encoder.both(configs)
    means, spreads = [], []
    for place, aim in enumerate(aims):
        gains = np.array([[aim.scale.gain(values[place])] for values in history.values])
        process = GaussianProcess(owners, *measured, gains, np.zeros_like(gains), UNPREDICTED_SCALES)
        mean, spread = process.differences(rows, effects, np.zeros((len(configs), 1)))
        means.append(mean[:, 0])
        spreads.append(spread[:, 0])
    return means, spreads


def flag_effects(
    encoder: Encoder,
    history: History,
    aims: Sequence[ScaledObjective],
    params: Params,
    without: Mapping[str, Params],
    feasible: Vector,
) -> list[FlagEffect]:
    """Return what each parameter of a configuration earns, most first.

    Args:
        encoder: of the space's parameters.
        history: what was measured; no prediction takes part.
        aims: the objectives, in the order of the measured values.
        params: the configuration.
        without: the configuration with each parameter put back, see `reset_to_default`; at least one.
        feasible: how likely each of those runs and keeps its promises, shape (parameters put back,).
    """
    means, spreads = contrast(encoder, history, aims, [params, *without.values()])
    weights = [aim.scale.weight for aim in aims]
    score = np.sum([weight * mean for weight, mean in zip(weights, means, strict=True)], axis=0)
    unsure = np.sqrt(np.sum([(weight * spread) ** 2 for weight, spread in zip(weights, spreads, strict=True)], axis=0))
    width = WIDENED * float(ndtri(0.5 + CONFIDENCE / 2))
    found = [
        FlagEffect(
            name,
            params[name],
            other.get(name),
            math.exp(score[place]),
            math.exp(score[place] - width * unsure[place]),
            math.exp(score[place] + width * unsure[place]),
            {aim.metric: math.exp(aim.scale.sign * mean[place]) for aim, mean in zip(aims, means, strict=True)},
            float(1.0 - feasible[place]),
            len(history.measured),
        )
        for place, (name, other) in enumerate(without.items())
    ]
    return sorted(found, key=lambda each: (-each.ratio, each.name))
