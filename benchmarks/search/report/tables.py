"""Prints the figures of one problem as tables."""

from collections.abc import Sequence

from benchmarks.search.report.figures import (
    OPENING_TRIALS,
    POOR_SCORE,
    IntervalEstimate,
    SummariesBySampler,
    estimate,
    mean_differences,
    seed_values,
)
from benchmarks.search.report.summary import LATE_TRIALS
from benchmarks.text_table import MISSING, print_table

SCORE_FIGURES = ("trials_to_95%", "trials_to_99%", "score_10", "score_15", "score_30", "score_60")
OPENING_FIGURES = ("opening_score", "opening_poor", "score_10", "score_20", "score_60", "seconds_to_98%")
COST_FIGURES = ("mean_trial_score_15", "infeasible", "hypervolume_60", "measured_over_true", "hours_to_95%", "ask_s")
COMPARED_FIGURES = (
    *("trials_to_95%", "trials_to_99%", "score_15", "score_30", "score_60"),
    *("infeasible", "mean_trial_score_15", "opening_score", "opening_poor", "score_10", "seconds_to_98%"),
)
FIGURE_DECIMALS = {"trials_to_95%": 0, "trials_to_99%": 0, "seconds_to_98%": 0, "ask_s": 3}
DEFAULT_DECIMALS = 2

SCORE_CAPTION = (
    "Trials until the incumbent reaches 95 % and 99 % of the best known score (budget + 1: never; lower is better), "
    "and its true score / the best known one after 10 to 60 trials (higher is better)"
)
OPENING_CAPTION = (
    f"Of the first {OPENING_TRIALS} trials after the defaults, the median true score / that of the defaults (0 if "
    f"infeasible) and the share below {POOR_SCORE}; the incumbent's true score / the best known one after 10, 20 and "
    "60 trials; and virtual seconds until 98 % of the best known score or to the end"
)
COST_CAPTION = (
    "Mean true score of trials 2 to 15 / the best known one (0 if infeasible), share of infeasible trials after the "
    f"{LATE_TRIALS}th, hypervolume after 60 trials (the defaults: 1), the winner's measured / true score (1: no bias), "
    "virtual hours until 95 % of the best known score or to the end, and seconds per suggestion"
)


def print_problem(name: str, by_sampler: SummariesBySampler, best: float, against: str) -> None:
    """Print the figures of a problem, and the differences between one sampler and each other.

    Args:
        name: the problem's name.
        by_sampler: the searches.
        best: the best known score.
        against: the sampler that the others are compared with.
    """
    seeds = max((len(runs) for runs in by_sampler.values()), default=0)
    print(f"\n{name}: best known score {best:.4g}; median [95 % interval] of n = {seeds} seeds")
    estimates = {
        sampler: {figure: estimate(values) for figure, values in seed_values(runs, best).items()}
        for sampler, runs in by_sampler.items()
    }
    for caption, figures in (
        (SCORE_CAPTION, SCORE_FIGURES),
        (OPENING_CAPTION, OPENING_FIGURES),
        (COST_CAPTION, COST_FIGURES),
    ):
        rows = [[sampler, *_cells(found, figures)] for sampler, found in estimates.items()]
        print_table(caption, ["sampler", *figures], rows)
    if against in by_sampler and len(by_sampler) > 1:
        _print_differences(by_sampler, best, against)


def _print_differences(by_sampler: SummariesBySampler, best: float, against: str) -> None:
    differences = {
        sampler: mean_differences(by_sampler[against], runs, best)
        for sampler, runs in by_sampler.items()
        if sampler != against
    }
    caption = (
        f"{against} minus each sampler, mean [95 % interval] over the seeds of both: a difference if it excludes 0"
    )
    rows = [[sampler, *_cells(found, COMPARED_FIGURES)] for sampler, found in differences.items()]
    print_table(caption, ["sampler", *COMPARED_FIGURES], rows)


def _cells(estimates: dict[str, IntervalEstimate | None], figures: Sequence[str]) -> list[str]:
    return [
        MISSING
        if (found := estimates.get(figure)) is None
        else found.text(FIGURE_DECIMALS.get(figure, DEFAULT_DECIMALS))
        for figure in figures
    ]
