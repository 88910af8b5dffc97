"""Who searches: the samplers that are compared, each with how it is told what came of a trial."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.study import Study

from benchmarks.search.problems.problem import Drawn, Problem
from benchmarks.search.samplers.planned import Planned
from benchmarks.search.samplers.scoot import Scoot
from search_spaces import ParameterValue
from tuner.sampler.prior.prior_cache import Prediction, Prior
from tuner.sampler.residual import ResidualSampler
from tuner.sampler.surrogate.encoding import Params
from tuner.sampler.transfer import SourceHistory

STARTUP_TRIALS = 10


@dataclass(frozen=True)
class Rival:
    """A sampler and how it is told.

    `tells_crash_as`: "fail" (Optuna's FAIL, which every sampler ignores), "constraint" (PRUNED with a violated
    constraint, which TPE learns from), or "worst" (COMPLETE with the worst values measured so far and a violated
    constraint, for samplers that read only complete trials). `constraints` says whether it is told of SLOs. `told` is
    what it optimises: the objectives side by side, or the logarithm of the study's score. `needs` are modules that it
    imports; `suits` says for which problems it makes sense, `usual` whether it takes part without being named.
    `ranks` gives the numbers of the trials that it thinks best; without it, that is what was measured best.
    """

    name: str
    sampler: Callable[[Problem, int], BaseSampler]
    tells_crash_as: Literal["fail", "constraint", "worst"] = "constraint"
    constraints: bool = True
    told: Literal["objectives", "score"] = "objectives"
    needs: tuple[str, ...] = ()
    suits: Callable[[Problem], bool] = lambda problem: True
    usual: bool = True
    ranks: Callable[[Study], list[int]] | None = None

    @property
    def missing(self) -> list[str]:
        """The modules that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


GRID_NAMES = (("max_num_seqs", "max_num_batched_tokens"), ("seqs", "tokens"), ("batch", "chunk"))
"""What vLLM's auto_tune goes through, and what stands for it in a problem without a server."""


class Grid(Planned):
    """Every pair of powers of two of two parameters, the second varying fastest; all others stay at the defaults."""

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(seed)
        config, hints = problem.defaults()
        self._rest = {**hints, **config}
        self._pairs = iter(_pairs(problem))

    def plan(self, study: Study) -> dict[str, ParameterValue]:
        """Return the next pair."""
        pair = next(self._pairs, None)
        self.finished = pair is None
        return {**self._rest, **(pair or {})}


def grid_names(problem: Problem) -> tuple[str, str] | None:
    """Return the two parameters that a grid goes through, None where the problem lacks them."""
    found = _ranges(problem)
    return next((pair for pair in GRID_NAMES if set(pair) <= found.keys()), None)


def _ranges(problem: Problem) -> dict[str, tuple[int, int]]:
    """Return the range of every integer that is asked for in the first few drawn configurations."""
    ranges: dict[str, tuple[int, int]] = {}

    class Noting(Drawn):
        def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
            ranges[name] = (low, high)
            return super().suggest_int(name, low, high, step=step, log=log)

    random = np.random.default_rng(0)
    for _ in range(8):
        problem.define(Noting(random))
    return ranges


def _pairs(problem: Problem) -> Iterator[dict[str, ParameterValue]]:
    names = grid_names(problem)
    if names is None:
        return
    ranges = _ranges(problem)
    one, other = (_powers(*ranges[name]) for name in names)
    for first in one:
        for second in other:
            yield {names[0]: first, names[1]: second}


def _powers(low: int, high: int) -> Sequence[int]:
    return [2**power for power in range(math.ceil(math.log2(max(1, low))), math.floor(math.log2(high)) + 1)]


def _quiet(make: Callable[[], BaseSampler]) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return make()


def _random(problem: Problem, seed: int) -> BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


def _qmc(problem: Problem, seed: int) -> BaseSampler:
    return _quiet(
        lambda: optuna.samplers.QMCSampler(
            scramble=True,
            seed=seed,
            independent_sampler=optuna.samplers.RandomSampler(seed=seed),
            warn_independent_sampling=False,
        )
    )


def _tpe_peer(problem: Problem, seed: int) -> BaseSampler:
    """Return TPE as the peer makes it: all defaults. It gives no seed, which has no effect on what is compared."""
    return optuna.samplers.TPESampler(seed=seed)


def _tpe(problem: Problem, seed: int) -> BaseSampler:
    """Return TPE with what Optuna has for conditional spaces and parallel trials."""
    return _quiet(
        lambda: optuna.samplers.TPESampler(
            n_startup_trials=STARTUP_TRIALS, multivariate=True, group=True, constant_liar=True, seed=seed
        )
    )


def _gp(problem: Problem, seed: int) -> BaseSampler:
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS, warn_independent_sampling=False)


def _nsga2(problem: Problem, seed: int) -> BaseSampler:
    """Return NSGA-II with generations of 10: with Optuna's 50 a search of 60 would be random but for its end."""
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=10)


def _scoot(problem: Problem, seed: int) -> BaseSampler:
    return Scoot(problem, seed, STARTUP_TRIALS)


def _grid(problem: Problem, seed: int) -> BaseSampler:
    return Grid(problem, seed)


def predictor_of(problem: Problem) -> Prior | None:
    """Return what predicts a problem, of a table the row nearest to a configuration; None where nothing does."""

    def predict(params: Params) -> Prediction | None:
        row = problem.snap(params, ())
        found = None if row is None else problem.prior(row)
        return None if found is None else Prediction(found.values, found.constraints)

    return predict if problem.prior(problem.defaults()[0]) is not None else None


def ours(problem: Problem, seed: int, earlier: Sequence[SourceHistory] = ()) -> BaseSampler:
    """Return this project's sampler."""
    return ResidualSampler(
        problem.define,
        prior=predictor_of(problem),
        allowed=problem.allowed,
        weights=[objective.weight for objective in problem.objectives],
        seed=seed,
        earlier=earlier,
    )


def _ranking(study: Study) -> list[int]:
    assert isinstance(study.sampler, ResidualSampler)
    return study.sampler.ranking(study)


RIVALS: dict[str, Rival] = {
    rival.name: rival
    for rival in (
        Rival("random", _random, tells_crash_as="fail", constraints=False),
        Rival("qmc", _qmc, tells_crash_as="fail", constraints=False),
        Rival("tpe-peer", _tpe_peer, tells_crash_as="fail", constraints=False),
        Rival("tpe-constrained", _tpe),
        Rival("tpe-score", _tpe, told="score"),
        Rival("gp", _gp, tells_crash_as="worst", told="score", needs=("torch",)),
        Rival("gp-objectives", _gp, tells_crash_as="worst", needs=("torch",), usual=False),
        Rival("nsga2", _nsga2, tells_crash_as="worst"),
        Rival("scoot", _scoot, told="score"),
        Rival("grid", _grid, tells_crash_as="fail", constraints=False, suits=lambda p: grid_names(p) is not None),
        Rival("ours", ours, ranks=_ranking),
    )
}
"""Everybody by name. `tpe-constrained` is what this project had before a sampler of its own. `gp-objectives` models
every objective and takes up to half a minute an ask."""
