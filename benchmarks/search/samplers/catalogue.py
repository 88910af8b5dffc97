"""Every sampler under comparison by its name."""

import warnings
from collections.abc import Callable

import optuna
from optuna.samplers import BaseSampler

from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.simulated.problem import SimulatedProblem
from benchmarks.search.samplers.compared import ComparedSampler
from benchmarks.search.samplers.grid import GridSampler, grid_names
from benchmarks.search.samplers.residual import make_residual, residual_ranking
from benchmarks.search.samplers.scoot import ScootSampler
from benchmarks.search.samplers.smac import SmacSampler

RANDOM_STARTS = 10
"""Random trials at the start of model-based samplers."""
GENERATION = 10
"""Trials in a generation of NSGA-II: with Optuna's 50, most of a search of 60 trials would be random."""
AIPERF_STARTS = 5
"""Random trials at the start of AIPerf's sampler, its default."""
RESIDUAL_NAME = "residual"


def _without_warnings(make: Callable[[], BaseSampler]) -> BaseSampler:
    """Return a sampler that is made without Optuna's warnings about experimental options."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return make()


def _random(problem: Problem, seed: int) -> BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


def _qmc(problem: Problem, seed: int) -> BaseSampler:
    return _without_warnings(
        lambda: optuna.samplers.QMCSampler(
            scramble=True,
            seed=seed,
            independent_sampler=optuna.samplers.RandomSampler(seed=seed),
            warn_independent_sampling=False,
        )
    )


def _tpe_defaults(problem: Problem, seed: int) -> BaseSampler:
    """Return TPE with all defaults, as the nearest peer project uses it; the peer gives no seed."""
    return optuna.samplers.TPESampler(seed=seed)


def _tpe(problem: Problem, seed: int) -> BaseSampler:
    """Return TPE with Optuna's options for conditional spaces and parallel trials."""
    return _without_warnings(
        lambda: optuna.samplers.TPESampler(
            n_startup_trials=RANDOM_STARTS, multivariate=True, group=True, constant_liar=True, seed=seed
        )
    )


def _gp(problem: Problem, seed: int) -> BaseSampler:
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=RANDOM_STARTS, warn_independent_sampling=False)


def _aiperf(problem: Problem, seed: int) -> BaseSampler:
    """Return the sampler of AIPerf 0.13's `BayesianSearchPlanner`, with the planner's settings.

    The planner takes ranges of numbers only; here its sampler gets the choices, too. It draws parameters that not every
    configuration has at random.
    """
    from aiperf.orchestrator.search_planner._optuna_helpers import build_qlognei_candidates_func
    from optuna_integration import BoTorchSampler

    return _without_warnings(
        lambda: BoTorchSampler(
            candidates_func=build_qlognei_candidates_func(),
            n_startup_trials=AIPERF_STARTS,
            independent_sampler=optuna.samplers.RandomSampler(seed=seed),
            seed=seed,
        )
    )


def _nsga2(problem: Problem, seed: int) -> BaseSampler:
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=GENERATION)


def _scoot(problem: Problem, seed: int) -> BaseSampler:
    return ScootSampler(problem, seed, RANDOM_STARTS)


def _smac(problem: Problem, seed: int) -> BaseSampler:
    return SmacSampler(problem, seed, RANDOM_STARTS)


def _has_grid(problem: Problem) -> bool:
    return grid_names(problem) is not None


def _is_simulated(problem: Problem) -> bool:
    return isinstance(problem, SimulatedProblem)


COMPARED_SAMPLERS: dict[str, ComparedSampler] = {
    sampler.name: sampler
    for sampler in (
        ComparedSampler("random", _random, crash_report="fail", reads_constraints=False),
        ComparedSampler("qmc", _qmc, crash_report="fail", reads_constraints=False),
        ComparedSampler("tpe-peer", _tpe_defaults, crash_report="fail", reads_constraints=False),
        ComparedSampler("tpe-constrained", _tpe),
        ComparedSampler("tpe-score", _tpe, optimises="score"),
        ComparedSampler("gp", _gp, crash_report="worst", optimises="score", required_modules=("torch",)),
        ComparedSampler("gp-objectives", _gp, crash_report="worst", required_modules=("torch",), by_default=False),
        ComparedSampler(
            "aiperf",
            _aiperf,
            crash_report="worst",
            optimises="score",
            required_modules=("aiperf", "botorch", "optuna_integration"),
            by_default=False,
        ),
        ComparedSampler("nsga2", _nsga2, crash_report="worst"),
        ComparedSampler("scoot", _scoot, optimises="score"),
        ComparedSampler("smac", _smac, optimises="score", required_modules=("smac",), applies_to=_is_simulated),
        ComparedSampler("grid", GridSampler, crash_report="fail", reads_constraints=False, applies_to=_has_grid),
        ComparedSampler("recipes-alone", _random, recipes="alone", applies_to=_is_simulated),
        ComparedSampler("residual-bare", make_residual, by_default=False, ranking=residual_ranking),
        ComparedSampler(RESIDUAL_NAME, make_residual, recipes="first", ranking=residual_ranking),
    )
}
"""The samplers by name. `tpe-constrained` is what `tuner optimize --sampler tpe` uses. `gp-objectives` models every
objective; one suggestion takes up to half a minute. One of `aiperf` takes 10 s."""
