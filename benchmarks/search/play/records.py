"""The record of one search."""

from dataclasses import dataclass

from benchmarks.search.problems.problem import Outcome
from records.trials import Config


@dataclass(frozen=True)
class PlayedTrial:
    """One trial that ended.

    Attributes:
        config: the measured configuration.
        outcome: the noisy outcome.
        true_score: the score without noise; None if the configuration is infeasible.
        ask_s: seconds that the sampler took for the suggestion.
        tell_s: seconds that reporting the result took.
        begun_at: when the trial began, virtual seconds since the search began.
        ended_at: when the trial ended, virtual seconds since the search began.
        leaders: indices of the best trials that ended so far, by the sampler's own ranking; None without one.
    """

    config: Config
    outcome: Outcome
    true_score: float | None
    ask_s: float
    tell_s: float
    begun_at: float
    ended_at: float
    leaders: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SearchRecord:
    """One search.

    Attributes:
        problem: the problem's name.
        sampler: the sampler's name.
        seed: of the sampler and of the noise.
        workers: number of trials that ran side by side.
        budget: number of trials that the search was allowed.
        trials: the trials in the order in which they ended.
        redrawn: suggestions that were not measured, because they broke a rule or were measured already.
        exhausted: whether no configuration was left to measure.
    """

    problem: str
    sampler: str
    seed: int
    workers: int
    budget: int
    trials: tuple[PlayedTrial, ...]
    redrawn: int
    exhausted: bool
