"""The best trial of an optimization, and its front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from storage.metrics import Direction
from tuner.scoring.objectives import Objective
from tuner.scoring.score import score

Measured: TypeAlias = tuple[int, Mapping[str, float], Mapping[str, float]]
"""Number, metrics and constraints of a trial."""


@dataclass(frozen=True)
class Best:
    """The best trials.

    Attributes:
        number: of the best feasible trial; None without one, or where several objectives cannot be weighed.
        score: of that trial with several objectives, relative to the first measured one; else None.
        front: numbers of the feasible trials that no other one beats in every objective.
    """

    number: int | None
    score: float | None
    front: tuple[int, ...]


def best(trials: Sequence[Measured], objectives: Sequence[Objective]) -> Best:
    """Return the best of some trials, the earliest of equal ones.

    Args:
        trials: by number.
        objectives: with several, the best has the largest weighted geometric mean of improvements over the first
            measured trial, see `tuner.scoring.score`.
    """
    feasible = [each for each in trials if all(value <= 0 for value in each[2].values())]
    costs = {number: tuple(_cost(each, metrics) for each in objectives) for number, metrics, _ in feasible}
    front = _front(costs)
    if not front:
        return Best(None, None, ())
    if len(objectives) == 1:
        return Best(front[0], None, front)
    reference = trials[0][1]
    scores = {number: score(metrics, reference, objectives) for number, metrics, _ in feasible if number in set(front)}
    known = {number: value for number, value in scores.items() if value is not None}
    if not known:
        return Best(None, None, front)
    top = max(known, key=lambda number: (known[number], -number))
    return Best(top, known[top], front)


def _cost(objective: Objective, metrics: Mapping[str, float]) -> float:
    value = metrics[objective.metric]
    return -value if objective.direction is Direction.MAXIMIZE else value


def _front(costs: Mapping[int, tuple[float, ...]]) -> tuple[int, ...]:
    """Return the numbers without a dominating trial.

    In the order of costs, a trial is only dominated by earlier ones, and then also by one on the front.
    """
    front: list[int] = []
    for number in sorted(costs, key=lambda number: (costs[number], number)):
        mine = costs[number]
        if not any(_dominates(costs[other], mine) for other in front):
            front.append(number)
    return tuple(sorted(front))


def _dominates(other: Sequence[float], mine: Sequence[float]) -> bool:
    return other != mine and all(a <= b for a, b in zip(other, mine, strict=True))
