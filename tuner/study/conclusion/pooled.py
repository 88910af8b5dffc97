"""Ratios to the reference from all groups of rounds: those in which a finalist and the reference were measured.

Also earlier groups count: the winner of their rounds was picked for them, so that they alone would flatter it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from storage.records import TrialRecord
from tuner.scoring.compare import Ratio, pooled_ratio
from tuner.scoring.goals import Goals
from tuner.scoring.objectives import parse_objective
from tuner.scoring.score import finite_exp
from tuner.study.conclusion.rounds import (
    Rounds,
    groups,
    metric_deviation,
    metric_differences,
    score_deviation,
    score_differences,
)

NO_VARIATION = 1e-9
"""Standard deviation of logarithms up to which all values of a metric are the same, such as success rates of 1."""


def score_ratios(
    rounds: Rounds, records: Sequence[TrialRecord], numbers: Sequence[int], reference: int
) -> dict[int, Ratio]:
    """Return the ratio of each finalist's score to that of the reference.

    Args:
        rounds: of the last group.
        records: every trial of the study.
        numbers: finalists that were measured in every round of the last group, the reference among them.
        reference: number of the reference.
    """
    known = score_deviation(rounds.goals, records)
    if known is None or len(groups(rounds.goals, records)) == 1:
        return rounds.score_ratios(numbers, reference)
    others = [number for number in numbers if number != reference]
    differences = {number: score_differences(rounds.goals, records, number, reference) for number in others}
    return {number: pooled_ratio(each, *known, len(others)) for number, each in differences.items()}


def metric_ratios(
    rounds: Rounds, records: Sequence[TrialRecord], numbers: Sequence[int], reference: int
) -> dict[int, dict[str, Ratio]]:
    """Return the ratio of each finalist's value to that of the reference, by number and objective; see `score_ratios`.

    A finalist whose value of a metric is absent or not positive in a round has no ratio of that metric.
    """
    goals = rounds.goals
    found = rounds.metric_ratios(numbers, reference)
    if len(groups(goals, records)) == 1:
        return found
    others = [number for number in numbers if number != reference]
    for metric in (objective.metric for objective in goals.objectives):
        known = metric_deviation(goals, records, metric)
        for number in others:
            differences = metric_differences(goals, records, number, reference, metric)
            if known is not None and differences and metric in found[number]:
                found[number][metric] = pooled_ratio(differences, *known, len(others))
    return found


def any_ratio(
    goals: Goals, records: Sequence[TrialRecord], number: int, reference: int, metric: str, comparisons: int
) -> Ratio | None:
    """Return the ratio of a trial's value to that of the reference, of a metric that may be no objective.

    Its interval has the method of the objectives' ones; it has none where the values do not vary.

    Args:
        goals: objectives, SLOs and weights.
        records: every trial of the study.
        number: of the trial.
        reference: number of the reference.
        metric: any metric.
        comparisons: number of finalists that were compared with the reference, at least 1.

    Returns:
        None without a round in which both met every SLO, or if a value is absent or not positive in one.
    """
    widened = replace(goals, scored=(parse_objective(metric),))
    differences = metric_differences(widened, records, number, reference, metric)
    known = metric_deviation(widened, records, metric)
    if not differences:
        return None
    if known is None or known[0] <= NO_VARIATION:
        return Ratio(finite_exp(sum(differences) / len(differences)), None, None, len(differences))
    return pooled_ratio(differences, *known, comparisons)
