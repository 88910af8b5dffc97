"""Compute figures from searches: medians over seeds with 95 % bootstrap intervals, and differences by seed."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search.report.summary import CHECKPOINTS, SearchSummary

TARGET_SHARES = (0.95, 0.98, 0.99)
"""Shares of the best known score that an incumbent should reach."""
FIRST_TRIALS = 15
"""Trials whose own scores are averaged, to show how much a search costs before it is good."""
OPENING_TRIALS = 6
"""Trials after the defaults whose scores show whether a search begins with sensible configurations."""
POOR_SCORE = 0.5
"""Score, relative to the defaults, below which an opening trial is poor."""
RESAMPLES = 2000
INTERVAL_PERCENTILES = (2.5, 97.5)

SummariesBySampler = Mapping[str, Sequence[SearchSummary]]
"""The searches of one problem by the sampler's name, in the order of their seeds."""


@dataclass(frozen=True)
class IntervalEstimate:
    """A median or a mean over seeds with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        """Return a text such as `0.95 [0.93, 0.97]`."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def estimate(values: Sequence[float], statistic: Callable[..., Any] = np.median) -> IntervalEstimate | None:
    """Return a statistic of the values with its 95 % bootstrap interval; None without values."""
    if not values:
        return None
    array = np.array(values, dtype=float)
    resampled = np.random.default_rng(0).integers(len(array), size=(RESAMPLES, len(array)))
    low, high = np.percentile(statistic(array[resampled], axis=1), INTERVAL_PERCENTILES)
    return IntervalEstimate(float(statistic(array)), float(low), float(high))


def trials_until(incumbent_scores: Sequence[float], target: float, budget: int) -> int:
    """Return the number of trials until the incumbent reaches a score; `budget + 1` if it never does."""
    return next((k + 1 for k, score in enumerate(incumbent_scores) if score >= target), budget + 1)


def score_after(incumbent_scores: Sequence[float], trials: int) -> float:
    """Return the incumbent's score after so many trials, or after the last one of a shorter search."""
    return incumbent_scores[min(trials, len(incumbent_scores)) - 1] if incumbent_scores else 0.0


def seed_values(runs: Sequence[SearchSummary], best: float) -> dict[str, list[float]]:
    """Return the values of each figure, one for each seed in the order of `runs`.

    A value is missing where it does not exist: for a checkpoint beyond the budget, or without an incumbent.

    Args:
        runs: searches of one problem by one sampler.
        best: the best known score; scores are relative to it.
    """
    values: dict[str, list[float]] = {}
    for share in TARGET_SHARES:
        values[f"trials_to_{share:.0%}"] = [trials_until(r.incumbent_scores, share * best, r.budget) for r in runs]
    values["hours_to_95%"] = [_seconds_until(run, TARGET_SHARES[0] * best) / 3600 for run in runs]
    values["seconds_to_98%"] = [_seconds_until(run, TARGET_SHARES[1] * best) for run in runs]
    for k in CHECKPOINTS:
        values[f"score_{k}"] = [score_after(run.incumbent_scores, k) / best for run in runs if k <= run.budget]
    for k in CHECKPOINTS:
        volumes = [run.hypervolume[str(k)] for run in runs if k <= run.budget]
        values[f"hypervolume_{k}"] = [volume for volume in volumes if volume is not None]
    openings = [run.true_scores[1 : OPENING_TRIALS + 1] or (0.0,) for run in runs]
    values["opening_score"] = [statistics.median(scores) for scores in openings]
    values["opening_poor"] = [statistics.fmean(score < POOR_SCORE for score in scores) for scores in openings]
    first = [run.true_scores[1:FIRST_TRIALS] or [0.0] for run in runs]
    values[f"mean_trial_score_{FIRST_TRIALS}"] = [statistics.fmean(scores) / best for scores in first]
    values["infeasible"] = [run.infeasible for run in runs if run.infeasible is not None]
    values["measured_over_true"] = [run.measured_over_true for run in runs if run.measured_over_true is not None]
    values["ask_s"] = [run.ask_s for run in runs]
    return values


def _seconds_until(run: SearchSummary, target: float) -> float:
    """Return the virtual seconds until the incumbent reaches a score, or the duration of the search."""
    index = min(trials_until(run.incumbent_scores, target, run.budget), len(run.incumbent_scores)) - 1
    return run.ended_at[index]


def mean_differences(
    runs: Sequence[SearchSummary], others: Sequence[SearchSummary], best: float
) -> dict[str, IntervalEstimate | None]:
    """Return the mean difference of each figure, `runs` minus `others`, over the seeds that both have."""
    by_seed, others_by_seed = ({run.seed: run for run in each} for each in (runs, others))
    seeds = sorted(by_seed.keys() & others_by_seed.keys())
    values, other_values = (seed_values([each[seed] for seed in seeds], best) for each in (by_seed, others_by_seed))
    names = [name for name in values if len(values[name]) == len(other_values[name]) == len(seeds)]
    return {
        name: estimate([a - b for a, b in zip(values[name], other_values[name], strict=True)], np.mean)
        for name in names
    }
