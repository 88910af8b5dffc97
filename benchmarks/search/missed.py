"""What does a search miss that ends early? Searches whose true scores are known, each with its whole budget.

    python -m benchmarks.search.missed [--problems NAME …] [--seeds 5] [--first 0] [--trials 60] [--choices 0]
        [--min-gains 2 3 5 10] [--prior none] [--jobs 2] [--json FILE]

The search of each seed runs to its budget in a world of its own. `converged` then says after which trial it would
have ended. What a search has found is the best true score of the defaults and of the three best measured trials,
because rounds decide among these. What going on brings is what the whole budget found over that; what the space holds
is the best score of a long search without noise over that.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.command_line import documented_parser, write_json
from benchmarks.search.play.search import play
from benchmarks.search.problems.best_known import long_search
from benchmarks.search.problems.problem import PRIOR_KINDS, Problem
from benchmarks.search.problems.simulated.problem import SimulatedProblem
from benchmarks.search.problems.simulated.study import SIMULATED_STUDIES
from benchmarks.search.problems.simulated.world import World
from benchmarks.search.problems.synthetic.problems import SYNTHETIC
from benchmarks.search.samplers.catalogue import COMPARED_SAMPLERS
from benchmarks.text_table import print_table
from tuner.study.convergence import converged

DEFAULT_PROBLEMS = ("flat", "sim-t4", "sim-t4-greedy", "sim-h200", "sim-h200-7b")
FINALISTS = 3
EVALUATIONS = 400
"""Evaluations of the long search in each world."""


@dataclass(frozen=True)
class WholeSearch:
    """One search to its budget.

    Attributes:
        problem: the problem's name.
        seed: of the search and of its world.
        best: the best known true score.
        scores: the measured score of each trial in order; None if it is infeasible.
        true_scores: without noise.
    """

    problem: str
    seed: int
    best: float
    scores: tuple[float | None, ...]
    true_scores: tuple[float | None, ...]

    def found(self, trials: int) -> float:
        """Return the best true score of the defaults and of the best measured ones of the first trials."""
        measured = [(score, place) for place, score in enumerate(self.scores[:trials]) if score is not None]
        leaders = [self.true_scores[place] for _, place in sorted(measured, reverse=True)[:FINALISTS]]
        return max([1.0, *(score for score in leaders if score is not None)])


def whole_search(task: tuple[str, int, int, float, str]) -> WholeSearch:
    """Return the search of a problem's name, seed, trials, effects of choices, and kind of prior."""
    name, seed, trials, choices, prior = task
    problem: Problem
    if name in SYNTHETIC:
        problem = SYNTHETIC[name](prior)
        best, sampler = problem.best, "residual-bare"
    else:
        problem = SimulatedProblem(name, SIMULATED_STUDIES[name](), World(seed=1 + seed, choices=choices), prior)
        best, sampler = long_search(problem, EVALUATIONS).score, "residual"
    played = play(problem, replace(COMPARED_SAMPLERS[sampler], ranking=None), trials, seed).trials
    true = tuple(each.true_score for each in played)
    scores = tuple(each.outcome.score if each.outcome.feasible else None for each in played)
    return WholeSearch(name, seed, max([best, *(score for score in true if score is not None)]), scores, true)


def end_of(search: WholeSearch, min_gain: float) -> int:
    """Return after how many trials a search ends."""
    whole = len(search.scores)
    return next((count for count in range(1, whole) if converged(search.scores[:count], min_gain)), whole)


def _rows(name: str, searches: Sequence[WholeSearch], min_gains: Sequence[float]) -> Iterator[list[str]]:
    for gain in min_gains:
        ends = [end_of(each, gain) for each in searches]
        pairs = list(zip(searches, ends, strict=True))
        brought = [math.log(each.found(len(each.scores)) / each.found(end)) for each, end in pairs]
        held = [math.log(each.best / each.found(end)) for each, end in pairs]
        yield [
            name,
            f"{100 * gain:g} %",
            f"{len(searches)}",
            f"{np.median(ends):.0f} ({min(ends)} to {max(ends)})",
            f"{sum(end < len(each.scores) for each, end in pairs)}",
            f"{100 * float(np.mean(brought)):.1f} %",
            f"{100 * max(brought):.1f} %",
            f"{sum(each > math.log1p(gain) for each in brought)}",
            f"{sum(each > math.log1p(gain) for each in held)}",
        ]


def check_missed() -> None:
    """Run the searches and print the figures."""
    parser = documented_parser(__doc__)
    parser.add_argument("--problems", nargs="+", default=DEFAULT_PROBLEMS)
    parser.add_argument("--seeds", type=int, default=5, help="searches of each problem [5]")
    parser.add_argument("--first", type=int, default=0, help="the first seed; it determines the world, too [0]")
    parser.add_argument("--trials", type=int, default=60, help="trials of a search [60]")
    parser.add_argument("--choices", type=float, default=0.0, help="standard deviation of each choice's effect [0]")
    parser.add_argument("--min-gains", type=float, nargs="+", default=[2.0, 3.0, 5.0, 10.0], help="in per cent")
    parser.add_argument("--prior", choices=PRIOR_KINDS, default="none")
    parser.add_argument("--jobs", type=int, default=2, help="processes [2]")
    parser.add_argument("--json", type=Path, help="write every search to this file")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    tasks = [(name, seed, asked.trials, asked.choices, asked.prior) for seed in seeds for name in asked.problems]
    with get_context("spawn").Pool(asked.jobs) as pool:
        searches = list(pool.imap(whole_search, tasks))
    gains = [gain / 100 for gain in asked.min_gains]
    groups = {name: [each for each in searches if each.problem == name] for name in asked.problems}
    rows = [row for name, group in groups.items() for row in _rows(name, group, gains)]
    header = ["problem", "min gain", "n", "trials", "early", "going on", "most", "above", "space above"]
    caption = (
        "Trials of a search (median, range), searches that end early, what going on to the whole budget would bring "
        "(mean, most), and searches in which that, or what the space holds, is above the least gain"
    )
    print_table(f"{caption}; prior {asked.prior}, effects of choices {asked.choices:g}", header, rows)
    write_json(asked.json, [asdict(each) for each in searches])


if __name__ == "__main__":
    check_missed()
