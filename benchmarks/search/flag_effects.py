"""Is what a flag is said to earn what it earns? Searches whose truth is known, and their winners taken apart.

    python -m benchmarks.search.flag_effects [--problems NAME …] [--seeds 10] [--trials 60] [--jobs 2] [--json FILE]

After each search the trial that the sampler thinks best is asked for what each of its parameters earns
(`tuner.sampler.flag_effects`), by the search's trials alone, and again after one more trial for each parameter,
without it (`tuner optimize --ablate`). The truth is the ratio of the two scores without noise. Printed for each
problem: the median error of the estimate, its correlation with the truth (of the logarithms), the share of intervals of
95 % that hold the truth, their median half-width, and of the claims that a flag earns or costs something how many are
true.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import optuna

from benchmarks.search.play import Search
from benchmarks.search.problems.catalogue import Settings, make_problem
from benchmarks.search.problems.problem import Problem
from benchmarks.search.samplers.catalogue import RIVALS
from tuner.sampler.acquisition.candidates import CandidateSpace
from tuner.sampler.flag_effects import reset_to_default
from tuner.sampler.residual import ResidualSampler
from tuner.sampler.surrogate.encoding import Params

PROBLEMS = ("conditional", "two-objectives", "sim-t4", "sim-t4-greedy")
SEED = 1000
"""Of the measurements without a flag, beyond those of the search."""


@dataclass(frozen=True)
class Estimate:
    """What a parameter is said to earn, and what it earns; `kind` is `search` or `ablated`."""

    problem: str
    seed: int
    kind: str
    name: str
    ratio: float
    low: float
    high: float
    truth: float


def estimates_of(problem: Problem, seed: int, trials: int) -> list[Estimate]:
    """Search, take what is thought best apart, measure it without each parameter, and take it apart again."""
    search = Search(problem, RIVALS["ours"], seed)
    while len(search.done) < trials and not search.exhausted:
        search.begin()
        search.finish()
    study, sampler = search.study, search.study.sampler
    assert isinstance(sampler, ResidualSampler)
    best = sampler.recommend(study)
    if best is None or best.number == 0:
        return []
    space = CandidateSpace(problem.define)
    defaults = study.get_trials(deepcopy=False)[0].params
    without = reset_to_default(space, best.params, defaults)
    whole = problem.truth(dict(best.params))
    truths = {name: problem.truth(dict(config)) for name, config in without.items()}
    found = []
    for kind in ("search", "ablated"):
        if kind == "ablated":
            _measure(study, problem, space, list(without.values()), seed)
        fresh = ResidualSampler(
            problem.define, allowed=problem.allowed, weights=[o.weight for o in problem.objectives], seed=seed
        )
        for each in fresh.flag_effects(study, best.number, 0, [o.metric for o in problem.objectives]):
            truth = truths[each.name]
            if truth and whole:
                known = (each.ratio, each.low, each.high, whole / truth)
                found.append(Estimate(problem.name, seed, kind, each.name, *known))
    return found


def _measure(study: optuna.Study, problem: Problem, space: CandidateSpace, configs: list[Params], seed: int) -> None:
    for place, config in enumerate(configs):
        outcome = problem.measure(config, seed * 10_007 + SEED + place)
        if outcome.values is None:
            continue
        known = {name: space.distributions[name] for name in config}
        trial = optuna.trial.create_trial(params=dict(config), distributions=known, values=list(outcome.values))
        for name, value in outcome.constraints.items():
            trial.set_constraint(name, value)
        study.add_trial(trial)


def one(task: tuple[str, int], trials: int) -> list[Estimate]:
    """Return the estimates of one search."""
    name, seed = task
    return estimates_of(make_problem(name, Settings()), seed, trials)


def summary(found: list[Estimate]) -> str:
    """Return the figures of some estimates on one line."""
    said = np.log([each.ratio for each in found])
    true = np.log([each.truth for each in found])
    widths = [math.log(each.high / each.low) / 2 for each in found]
    held = np.mean([each.low <= each.truth <= each.high for each in found])
    sure = [each for each in found if each.low > 1 or each.high < 1]
    right = sum((each.truth > 1) == (each.low > 1) and each.truth != 1 for each in sure)
    return (
        f"{len(found)} flags, error {np.median(np.abs(said - true)):.3f} where the truth is off 1 by "
        f"{np.median(np.abs(true)):.3f}, correlation {np.corrcoef(said, true)[0, 1]:.2f}, intervals hold {held:.2f}, "
        f"half-width {np.median(widths):.3f}, {right} of {len(sure)} claims true"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tasks = [(name, seed) for name in arguments.problems for seed in range(arguments.seeds)]
    with get_context("spawn").Pool(arguments.jobs) as pool:
        found = [each for part in pool.imap(partial(one, trials=arguments.trials), tasks) for each in part]
    for name in arguments.problems:
        for kind in ("search", "ablated"):
            some = [each for each in found if (each.problem, each.kind) == (name, kind)]
            print(f"{name}, {kind}: {summary(some)}" if some else f"{name}, {kind}: nothing to take apart")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(each) for each in found]))


if __name__ == "__main__":
    main()
