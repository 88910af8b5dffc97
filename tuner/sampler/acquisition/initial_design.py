"""Configurations of the first trials, before there are enough for the surrogate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from optuna.study import StudyDirection

from tuner.sampler.acquisition.candidates import CandidateSpace
from tuner.sampler.prior.prior_cache import PriorCache, rank_by_prediction
from tuner.sampler.surrogate.encoding import Encoder, Params, Vector
from tuner.sampler.surrogate.history import History, objective_scales
from tuner.sampler.transfer import Transfer

SPACE_FILLING_DRAWS = 12
"""Number of random configurations; the one that is farthest from all trials is chosen."""
BEST_SHARE = 10
"""Inverse of the share of best predictions from which parallel workers get their first configurations."""


def best_of_sources(
    transfer: Transfer,
    space: CandidateSpace,
    history: History,
    directions: Sequence[StudyDirection],
    weights: Sequence[float] | None,
) -> Params:
    """Return the best configuration of the source studies that is untried and breaks no rule; {} if there is none."""
    excluded = history.excluded
    scales = objective_scales([(1.0,) * len(directions)], directions, weights)
    untried = (each for each in transfer.best(scales) if frozenset(each.items()) not in excluded)
    return next(filter(space.allows, untried), {})


def best_predicted(
    prior: PriorCache,
    space: CandidateSpace,
    history: History,
    directions: Sequence[StudyDirection],
    weights: Sequence[float] | None,
) -> Params:
    """Return the best predicted configuration that is untried; {} if there is none.

    If a configuration of the best tenth was tried or is running, return the untried one of the tenth that differs most.
    """
    excluded = history.excluded
    ranked = rank_by_prediction(prior, directions, weights)
    untried = [config for config in ranked if frozenset(config.items()) not in excluded]
    best = [config for config in ranked[: len(ranked) // BEST_SHARE] if prior.predicts_feasible(config)]
    tried = [config for config in best if config not in untried]
    left = [config for config in best if config in untried]
    return _farthest(space, left, tried) if left and tried else next(iter(untried), {})


def space_filling(space: CandidateSpace, history: History, rng: np.random.Generator) -> Params:
    """Return the random configuration with the largest distance to its nearest trial; {} if none could be drawn.

    Configurations nearer to an infeasible trial than to any feasible one are left out, if others remain.
    """
    draws = [config for _ in range(SPACE_FILLING_DRAWS) if (config := space.draw(rng)) is not None]
    if not draws or not history.tried:
        return draws[0] if draws else {}
    feasible, infeasible = history.feasible, history.infeasible
    if feasible and infeasible:
        nearer = _distances(space, draws, feasible) < _distances(space, draws, infeasible)
        draws = [config for config, near in zip(draws, nearer, strict=True) if near] or draws
    return _farthest(space, draws, history.tried)


def _distances(space: CandidateSpace, configs: Sequence[Params], others: Sequence[Params]) -> Vector:
    """Return the squared distance of each configuration to the nearest of the others, shape (configs,)."""
    encoder = Encoder(space.distributions)
    rows, other_rows = encoder.rows(configs), encoder.rows(others)
    return np.asarray(((rows[:, None, :] - other_rows[None, :, :]) ** 2).sum(axis=2).min(axis=1))


def _farthest(space: CandidateSpace, configs: Sequence[Params], others: Sequence[Params]) -> Params:
    """Return the configuration with the largest distance to the nearest of the others."""
    return configs[int(np.argmax(_distances(space, configs, others)))]
