"""Flags and the score: the effect and the importance of each flag, and the order in which flags can be reset.

The effect of a flag compares a configuration with itself after one parameter is reset. An interaction of two parameters
therefore counts for both, and the product of the ratios differs from the ratio of the whole configuration. (Fawcett and
Hoos, "Analysing differences between algorithm configurations through ablation", Journal of Heuristics 22, 2016, reset
one after another; here each ratio answers whether the flag is needed.) Every objective has its own Gaussian process,
because their noise differs. The score is the weighted sum of the gains.

The reduction resets flags one after another, each time the one whose loss is expected to be smallest (backward
elimination). First go the flags that are predicted to bring nothing: what the model ascribes to them is mostly the luck
of the measurement for which the configuration was picked. For the others the expectation is the surrogate's: the
measured trials, with the predictions as its prior mean. This order is a proposal; the finals of the study decide.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from tuner.confidence import normal_factor
from tuner.sampler.candidates import CandidateSpace
from tuner.sampler.encoding import Encoder, Params, Vector
from tuner.sampler.gaussian_process import WITHOUT_PRIOR, GaussianProcess, losses_of_first
from tuner.sampler.history import History, ObjectiveScale
from tuner.sampler.surrogate import Surrogate

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


def reset_to_default(space: CandidateSpace, params: Params, defaults: Params) -> dict[str, Params]:
    """Return, for each parameter that differs from its default, the configuration with that parameter reset.

    Conditional parameters that the default makes inactive are left out; those that it activates get their own
    defaults. A parameter that `defaults` lacks is not reset. Rules are not checked: a configuration that breaks a rule
    shows that the parameter is needed.
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
    encoder: Encoder, history: History, scales: Sequence[ObjectiveScale], configs: Sequence[Params]
) -> tuple[list[Vector], list[Vector]]:
    """Return by how much the gains of the first configuration exceed those of each other one, from measured trials.

    Returns:
        For each objective the posterior mean and standard deviation of the differences, without noise; each of shape
        (configurations - 1,).
    """
    measured, inputs = encoder.encode(history.measured), encoder.encode(configs)
    means, spreads = [], []
    for index, scale in enumerate(scales):
        gains = np.array([[scale.gain(values[index])] for values in history.values])
        process = GaussianProcess(encoder.columns, measured, gains, np.zeros_like(gains), WITHOUT_PRIOR)
        mean, spread = losses_of_first(*process.predict_joint(inputs, np.zeros((len(configs), 1))))
        means.append(mean)
        spreads.append(spread)
    return means, spreads


def flag_effects(
    encoder: Encoder,
    history: History,
    objectives: Mapping[str, ObjectiveScale],
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
        objectives: their scales by metric, in the order of the measured values.
        params: the configuration.
        without: the configuration with each parameter reset, see `reset_to_default`; at least one.
        feasible: probability of feasibility of each of those, shape (parameters,).
    """
    scales = list(objectives.values())
    means, spreads = gain_differences(encoder, history, scales, [params, *without.values()])
    weights = [scale.weight for scale in scales]
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
                metric: math.exp(scale.sign * mean[index])
                for (metric, scale), mean in zip(objectives.items(), means, strict=True)
            },
            float(1.0 - feasible[index]),
            len(history.measured),
        )
        for index, (name, other) in enumerate(without.items())
    ]
    return sorted(effects, key=lambda each: (-each.ratio, each.name))


optuna.logging.set_verbosity(optuna.logging.ERROR)

RESAMPLES = 12
"""Bootstrap samples of the trials, from which the intervals follow."""

MOST_TRIALS = 300
"""Trials in a sample at most: a random forest of more takes seconds and says the same."""

LEAST_SCORED = 10
"""With fewer trials nothing is said."""

IMPORTANCE_TREES = 16


def parameter_importance(trials: Sequence[FrozenTrial], seed: int = 0) -> dict[str, tuple[float, float, float]]:
    """Return the share of the variance of the score's logarithm that each parameter explains.

    Parameters that only some trials have, and those with a single value, are left out. Shares are relative to all
    others, so that they add up to 1.

    Args:
        trials: with the user attribute `score`; others do not count.
        seed: of the samples and forests.

    Returns:
        By parameter, the most important first: the mean share over bootstrap samples of the trials, and the samples'
        5th and 95th percentile. Empty with fewer than `LEAST_SCORED` trials, or if all score the same.
    """
    scored = [trial for trial in trials if (trial.user_attrs.get("score") or 0.0) > 0.0]
    if len(scored) < LEAST_SCORED or len({trial.user_attrs["score"] for trial in scored}) == 1:
        return {}
    generator = np.random.default_rng(seed)
    found: dict[str, list[float]] = {}
    for index in range(RESAMPLES):
        chosen = generator.integers(len(scored), size=min(len(scored), MOST_TRIALS))
        for name, share in _shares([scored[place] for place in chosen], seed + index).items():
            found.setdefault(name, []).append(share)
    complete = {name: shares for name, shares in found.items() if len(shares) == RESAMPLES}
    summary = {
        name: (float(np.mean(shares)), float(np.quantile(shares, 0.05)), float(np.quantile(shares, 0.95)))
        for name, shares in complete.items()
    }
    return dict(sorted(summary.items(), key=lambda item: -item[1][0]))


def _shares(trials: Sequence[FrozenTrial], seed: int) -> dict[str, float]:
    values = [math.log(trial.user_attrs["score"]) for trial in trials]
    if len(set(values)) == 1:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study()
        study.add_trials(
            [
                optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=value)
                for trial, value in zip(trials, values, strict=True)
            ]
        )
        evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=IMPORTANCE_TREES, seed=seed)
        return {
            name: float(share)
            for name, share in optuna.importance.get_param_importances(study, evaluator=evaluator).items()
        }


def stored_importance(storage_url: str, name: str) -> dict[str, tuple[float, float, float]]:
    """Return `parameter_importance` of a stored study; empty if Optuna has no study of this name."""
    try:
        study = optuna.load_study(study_name=name, storage=storage_url)
    except KeyError:
        return {}
    return parameter_importance(study.get_trials(deepcopy=False))


IDLE_LOSS = 0.003
"""Largest predicted loss of the score's logarithm of flags that together bring nothing."""

LEAST_FEASIBLE = 0.5
"""Least probability that a reduced configuration runs and meets the SLOs, unless the whole one's is lower."""


ScoresOf = Callable[[Sequence[Params]], Vector]
"""The score's logarithm of each configuration, shape (n,), as predicted or as expected."""


@dataclass(frozen=True)
class Elimination:
    """The flags of a configuration in the order of their resetting.

    Args:
        names: without the flags that cannot be reset: a rule, a failure or an SLO needs them.
        idle: how many of the first ones are predicted to bring nothing together; 0 without predictions.
    """

    names: tuple[str, ...]
    idle: int = 0


def eliminate(space: CandidateSpace, surrogate: Surrogate, params: Params, defaults: Params) -> Elimination:
    """Return the order in which the flags of a configuration are reset."""
    chain = _Chain(space, surrogate, params, defaults)
    idle: list[str] = []
    current = params
    if surrogate.has_predictions:
        for name, loss, reduced in chain.steps(params, surrogate.predicted_scores):
            if loss > IDLE_LOSS:
                break
            idle.append(name)
            current = reduced
    others = [name for name, _, _ in chain.steps(current, lambda configs: surrogate.joint_scores(configs)[0])]
    return Elimination((*idle, *others), len(idle))


class _Chain:
    """Resets the flags of a configuration one after another."""

    def __init__(self, space: CandidateSpace, surrogate: Surrogate, params: Params, defaults: Params) -> None:
        self._space, self._surrogate, self._defaults = space, surrogate, defaults
        self._least = min(LEAST_FEASIBLE, 0.9 * float(surrogate.probability_of_feasibility([params])[0]))

    def steps(self, whole: Params, scores_of: ScoresOf) -> Iterator[tuple[str, float, Params]]:
        """Yield the flags in their order, until a rule, a failure or an SLO needs what remains.

        Beside each are the loss of the score's logarithm without it and those before it, and the configuration then.
        """
        current = whole
        while True:
            without = reset_to_default(self._space, current, self._defaults)
            allowed = {name: reduced for name, reduced in without.items() if self._space.allows(reduced)}
            configs = list(allowed.values())
            if not configs:
                return
            scores = scores_of([whole, *configs])
            losses = scores[0] - scores[1:]
            losses[self._surrogate.probability_of_feasibility(configs) < self._least] = np.inf
            best = int(np.argmin(losses))
            if not np.isfinite(losses[best]):
                return
            current = configs[best]
            yield list(allowed)[best], float(losses[best]), current
