"""Runs searches in several processes."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.command_line import exit_on_sigterm
from benchmarks.search.play.search import play
from benchmarks.search.problems.best_known import raise_best
from benchmarks.search.problems.catalogue import ProblemSettings, cache_identity, make_problem
from benchmarks.search.report.summary import SearchSummary, summarise_search
from benchmarks.search.samplers.catalogue import COMPARED_SAMPLERS
from benchmarks.search.samplers.transfer import with_source_study

PROGRESS_LINES = 20
"""Lines of progress in a run whose stderr is not a terminal."""
ROUNDING = 1e-9
"""A relative gain on the best known score that is a rounding error."""


@dataclass(frozen=True)
class SearchTask:
    """One search to run.

    Attributes:
        problem: the problem's name.
        sampler: the sampler's name.
        seed: of the sampler and of the noise.
        trials: the budget.
        workers: number of trials that run side by side.
        finalists: see `summarise_search`.
        settings: of the problems.
        source_study: the problem of the residual sampler's source study; None: without one.
    """

    problem: str
    sampler: str
    seed: int
    trials: int
    workers: int
    finalists: int
    settings: ProblemSettings
    source_study: str | None = None


def run_search(task: SearchTask) -> SearchSummary:
    """Run one search in this process."""
    problem, sampler = make_problem(task.problem, task.settings), COMPARED_SAMPLERS[task.sampler]
    if task.source_study is not None:
        sampler = with_source_study(sampler, task.source_study, task.settings, task.trials)
    record = play(problem, sampler, task.trials, task.seed, task.workers)
    return summarise_search(problem, record, task.finalists)


def _best_score(name: str, settings: ProblemSettings) -> tuple[str, float]:
    return name, make_problem(name, settings).best


def run_searches(
    tasks: Sequence[SearchTask], problems: Sequence[str], settings: ProblemSettings, processes: int
) -> tuple[list[SearchSummary], dict[str, float]]:
    """Return the summary of every search, in the order of their ends, and the best known score of each problem.

    The processes end with this one.

    Args:
        tasks: the searches.
        problems: the names of the problems.
        settings: of the problems.
        processes: number of processes.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # several threads of PyTorch and BLAS in each process are slower
    exit_on_sigterm()
    summaries: list[SearchSummary] = []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        best = dict(pool.starmap(_best_score, [(name, settings) for name in problems]))
        for summary in pool.imap_unordered(run_search, tasks):
            summaries.append(summary)
            if sys.stderr.isatty() or len(summaries) % max(1, len(tasks) // PROGRESS_LINES) == 0:
                end = "\r" if sys.stderr.isatty() else "\n"
                print(f"{len(summaries)} of {len(tasks)} searches", end=end, file=sys.stderr)
    return summaries, best


def raise_best_scores(runs: Sequence[SearchSummary], best: dict[str, float], settings: ProblemSettings) -> None:
    """Raise the best known scores, in `best` and on disk, to better ones that a search found."""
    for run in runs:
        if run.best_true_score > best[run.problem] * (1 + ROUNDING):
            identity = cache_identity(make_problem(run.problem, settings))
            if identity is not None:
                raise_best(identity, run.best_true_score, run.best_config)
            best[run.problem] = run.best_true_score
