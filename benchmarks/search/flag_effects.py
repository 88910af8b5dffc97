"""Are the estimated flag effects right? Searches whose true scores are known, and the flag effects of their winners.

    python -m benchmarks.search.flag_effects [--problems NAME …] [--seeds 10] [--trials 60] [--jobs 2] [--json FILE]

The winner of each search is the trial that the residual sampler recommends. Its flag effects are estimated twice
(`tuner.sampler.flag_effects`): from the trials of the search, and with one more trial for each parameter, which is
reset to its default (`tuner optimize --ablate`). The true effect is the ratio of the two scores without noise.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial

from benchmarks.command_line import documented_parser, write_json
from benchmarks.search.play.search import VirtualSearch, noise_seed
from benchmarks.search.problems.catalogue import ProblemSettings, make_problem
from benchmarks.search.problems.problem import Problem
from benchmarks.search.samplers.catalogue import COMPARED_SAMPLERS, RESIDUAL_NAME
from benchmarks.text_table import print_table
from search_spaces import ParameterValue
from tuner.sampler.candidates import CandidateSpace
from tuner.sampler.encoding import Params
from tuner.sampler.flag_effects import reset_to_default
from tuner.sampler.residual import ResidualSampler

DEFAULT_PROBLEMS = ("conditional", "two-objectives", "sim-t4", "sim-t4-greedy")
FROM_SEARCH, WITH_ABLATION = "search", "ablated"
ABLATION_NOISE_NUMBER = 1000
"""Number of the first ablation trial for its noise seed, beyond the trials of the search."""
EFFECT_CAPTION = (
    "Estimated and true flag effects (score with the flag / score with its default), in logarithms: median error "
    "(lower is better), median true effect, correlation, share of the 95 % intervals that contain the true effect, "
    "their median half-width, and how many of the intervals that exclude no effect are on the right side"
)


@dataclass(frozen=True)
class EffectEstimate:
    """The estimated and the true effect of one parameter.

    Attributes:
        problem: the problem's name.
        seed: of the search.
        kind: `search` or `ablated`.
        name: the parameter's name.
        ratio: the estimated effect.
        low: lower end of the 95 % interval.
        high: upper end of the 95 % interval.
        truth: the true effect.
    """

    problem: str
    seed: int
    kind: str
    name: str
    ratio: float
    low: float
    high: float
    truth: float


def effect_estimates(problem: Problem, seed: int, trials: int) -> list[EffectEstimate]:
    """Return the flag effects of the winner of one search; none if the defaults win."""
    study = _searched_study(problem, seed, trials)
    assert isinstance(study.sampler, ResidualSampler)
    winner = study.sampler.recommend(study)
    if winner is None or winner.number == 0:
        return []
    space = CandidateSpace(problem.define)
    defaults = study.get_trials(deepcopy=False)[0].params
    ablated = reset_to_default(space, winner.params, defaults)
    winner_score = problem.true_score(dict(winner.params))
    scores = {name: problem.true_score(dict(config)) for name, config in ablated.items()}
    true_effects = {name: winner_score / score for name, score in scores.items() if score and winner_score}
    estimates = _estimate(problem, study, winner, seed, FROM_SEARCH, true_effects)
    _measure(study, problem, space, list(ablated.values()), seed)
    return estimates + _estimate(problem, study, winner, seed, WITH_ABLATION, true_effects)


def _searched_study(problem: Problem, seed: int, trials: int) -> Study:
    search = VirtualSearch(problem, COMPARED_SAMPLERS[RESIDUAL_NAME], seed, trials)
    while len(search.ended) < trials and not search.exhausted:
        search.begin()
        search.finish()
    return search.study


def _estimate(
    problem: Problem, study: Study, winner: FrozenTrial, seed: int, kind: str, true_effects: dict[str, float]
) -> list[EffectEstimate]:
    """Return the effects that a fresh sampler without a prior estimates from the study's trials."""
    weights = [objective.weight for objective in problem.objectives]
    sampler = ResidualSampler(problem.define, is_allowed=problem.allowed, weights=weights, seed=seed)
    metrics = [objective.metric for objective in problem.objectives]
    return [
        EffectEstimate(problem.name, seed, kind, each.name, each.ratio, each.low, each.high, true_effects[each.name])
        for each in sampler.flag_effects(study, winner.number, 0, metrics)
        if each.name in true_effects
    ]


def _measure(study: Study, problem: Problem, space: CandidateSpace, configs: Sequence[Params], seed: int) -> None:
    """Add a measured trial for each configuration; those that crash are left out."""
    for place, config in enumerate(configs):
        values: dict[str, ParameterValue] = dict(config)
        outcome = problem.measure(values, noise_seed(seed, ABLATION_NOISE_NUMBER + place))
        if outcome.values is None:
            continue
        distributions = {name: space.distributions[name] for name in config}
        trial = optuna.trial.create_trial(params=values, distributions=distributions, values=list(outcome.values))
        for name, value in outcome.constraints.items():
            trial.set_constraint(name, value)
        study.add_trial(trial)


def _estimates_of_task(task: tuple[str, int], trials: int) -> list[EffectEstimate]:
    name, seed = task
    return effect_estimates(make_problem(name, ProblemSettings()), seed, trials)


def _cells(estimates: Sequence[EffectEstimate]) -> list[str]:
    """Return the figures of some estimates, in the order of the caption."""
    if not estimates:
        return ["0", "", "", "", "", "", ""]
    estimated = np.log([each.ratio for each in estimates])
    true = np.log([each.truth for each in estimates])
    half_widths = [math.log(each.high / each.low) / 2 for each in estimates]
    covered = np.mean([each.low <= each.truth <= each.high for each in estimates])
    certain = [each for each in estimates if each.low > 1 or each.high < 1]
    right = sum((each.truth > 1) == (each.low > 1) and each.truth != 1 for each in certain)
    return [
        f"{len(estimates)}",
        f"{np.median(np.abs(estimated - true)):.3f}",
        f"{np.median(np.abs(true)):.3f}",
        f"{np.corrcoef(estimated, true)[0, 1]:.2f}",
        f"{covered:.2f}",
        f"{np.median(half_widths):.3f}",
        f"{right} of {len(certain)}",
    ]


def check_flag_effects() -> None:
    """Run the searches and print the figures."""
    parser = documented_parser(__doc__)
    parser.add_argument("--problems", nargs="+", default=DEFAULT_PROBLEMS)
    parser.add_argument("--seeds", type=int, default=10, help="searches on each problem [10]")
    parser.add_argument("--trials", type=int, default=60, help="trials of a search [60]")
    parser.add_argument("--jobs", type=int, default=2, help="processes [2]")
    parser.add_argument("--json", type=Path, help="write every estimate to this file")
    arguments = parser.parse_args()
    tasks = [(name, seed) for name in arguments.problems for seed in range(arguments.seeds)]
    with get_context("spawn").Pool(arguments.jobs) as pool:
        parts = pool.imap(partial(_estimates_of_task, trials=arguments.trials), tasks)
        estimates = [each for part in parts for each in part]
    rows = []
    for name in arguments.problems:
        for kind in (FROM_SEARCH, WITH_ABLATION):
            selected = [each for each in estimates if (each.problem, each.kind) == (name, kind)]
            rows.append([name, kind, *_cells(selected)])
    header = [
        "problem",
        "estimated from",
        "n flags",
        "error",
        "effect",
        "correlation",
        "coverage",
        "half-width",
        "right side",
    ]
    print_table(f"{EFFECT_CAPTION}; {arguments.seeds} seeds, {arguments.trials} trials", header, rows)
    write_json(arguments.json, [asdict(each) for each in estimates])


if __name__ == "__main__":
    check_flag_effects()
