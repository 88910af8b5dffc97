"""Summarise one search: the incumbent's score by trial, infeasible trials, and the hypervolume."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from optuna._hypervolume import compute_hypervolume

from benchmarks.search.play.records import PlayedTrial, SearchRecord
from benchmarks.search.problems.problem import Problem, is_maximised
from records.trials import Config

CHECKPOINTS = (10, 15, 20, 30, 60)
"""Numbers of trials after which the incumbent's score is reported."""
LATE_TRIALS = 20
"""The infeasible share is that of the trials after these first ones, which show the constraints to a sampler."""
HYPERVOLUME_LOSS = math.log(2.0)
"""The reference point of the hypervolume: each objective half as good as the defaults."""


@dataclass(frozen=True)
class SearchSummary:
    """The figures of one search. True scores are without noise, and 0 for an infeasible trial.

    Attributes:
        problem: the problem's name.
        family: the problem's family.
        sampler: the sampler's name.
        seed: of the sampler and of the noise.
        workers: number of trials that ran side by side.
        budget: number of trials that the search was allowed.
        incumbent_scores: the incumbent's true score after each trial, 0 without an incumbent.
        true_scores: the true score of each trial.
        ended_at: when each trial ended, virtual seconds since the search began.
        hypervolume: of the trials up to each checkpoint; see `hypervolume`.
        infeasible: the share of infeasible trials after the first `LATE_TRIALS`; None without such trials.
        measured_over_true: the last incumbent's measured score relative to its true one.
        ask_s: mean seconds that a suggestion took.
        tell_s: mean seconds that reporting a result took.
        redrawn: suggestions that were not measured.
        best_true_score: the best true score of all trials.
        best_config: the configuration with the best true score.
    """

    problem: str
    family: str
    sampler: str
    seed: int
    workers: int
    budget: int
    incumbent_scores: tuple[float, ...]
    true_scores: tuple[float, ...]
    ended_at: tuple[float, ...]
    hypervolume: Mapping[str, float | None]
    infeasible: float | None
    measured_over_true: float | None
    ask_s: float
    tell_s: float
    redrawn: int
    best_true_score: float
    best_config: Config


def summarise_search(problem: Problem, record: SearchRecord, finalists: int = 1) -> SearchSummary:
    """Return the figures of a search.

    Args:
        problem: the problem.
        record: the search.
        finalists: number of best trials whose true scores are known, as if each were measured again. The best of them
            is the incumbent. 1: the trial that the sampler ranks first, or else the one with the best measured score.
    """
    trials = record.trials
    rankings = [_ranked(trials[: k + 1])[:finalists] for k in range(len(trials))]
    late = trials[LATE_TRIALS:]
    last = rankings[-1][0] if rankings and rankings[-1] else None
    best = max(trials, key=_true_score)
    return SearchSummary(
        problem=problem.name,
        family=problem.family,
        sampler=record.sampler,
        seed=record.seed,
        workers=record.workers,
        budget=record.budget,
        incumbent_scores=tuple(max(map(_true_score, ranking), default=0.0) for ranking in rankings),
        true_scores=tuple(map(_true_score, trials)),
        ended_at=tuple(trial.ended_at for trial in trials),
        hypervolume={str(k): hypervolume(problem, trials[:k]) for k in CHECKPOINTS},
        infeasible=sum(not trial.outcome.feasible for trial in late) / len(late) if late else None,
        measured_over_true=_measured_score(last) / last.true_score if last is not None and last.true_score else None,
        ask_s=sum(trial.ask_s for trial in trials[1:]) / max(1, len(trials) - 1),
        tell_s=sum(trial.tell_s for trial in trials) / len(trials),
        redrawn=record.redrawn,
        best_true_score=_true_score(best),
        best_config=dict(best.config),
    )


def _ranked(trials: Sequence[PlayedTrial]) -> list[PlayedTrial]:
    """Return the best of the trials, best first: by the sampler's ranking, or else by the measured score."""
    leaders = trials[-1].leaders
    if leaders is not None:
        return [trials[index] for index in leaders]
    feasible = [trial for trial in trials if trial.outcome.feasible and trial.outcome.score is not None]
    return sorted(feasible, key=_measured_score, reverse=True)


def _measured_score(trial: PlayedTrial) -> float:
    return trial.outcome.score or 0.0


def _true_score(trial: PlayedTrial) -> float:
    return trial.true_score or 0.0


def hypervolume(problem: Problem, trials: Sequence[PlayedTrial]) -> float | None:
    """Return the hypervolume that the feasible trials dominate; None if the defaults crash.

    The axes are the logarithms of the improvement of each objective over the defaults. The reference point is half as
    good as the defaults in each objective. The unit is the hypervolume of the defaults alone.
    """
    reference = problem.reference
    if reference is None or min(reference) <= 0:
        return None
    losses = []
    for trial in trials:
        values = trial.outcome.values
        if not trial.outcome.feasible or values is None or min(values) <= 0:
            continue
        pairs = zip(values, reference, problem.objectives, strict=True)
        gains = [math.log(value / base) * (1 if is_maximised(each) else -1) for value, base, each in pairs]
        if min(gains) > -HYPERVOLUME_LOSS:
            losses.append([-gain for gain in gains])
    if not losses:
        return 0.0
    worst = np.full(len(reference), HYPERVOLUME_LOSS)
    return float(compute_hypervolume(np.array(losses), worst)) / HYPERVOLUME_LOSS ** len(reference)
