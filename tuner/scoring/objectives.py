"""Objectives: which metrics the study optimises, each with its direction and its weight in the scalar score."""

from __future__ import annotations

import math
from dataclasses import dataclass

from storage.metrics import Direction, metric

PUBLISHED_WEIGHTS = {"output_throughput": 40.0, "p99_tpot_ms": 20.0, "p99_ttft_ms": 15.0, "success_rate": 10.0}
"""The contest's published weights; its remaining 15 (code quality and documentation) is not a run's to earn."""

DEFAULT_WEIGHT = 20.0


@dataclass(frozen=True)
class Objective:
    """One metric to optimise; `weight` is its share of the scalar score before renormalising."""

    metric: str
    direction: Direction
    weight: float

    def __str__(self) -> str:
        return f"{self.metric}:{self.weight:g}"


def parse_objective(text: str) -> Objective:
    """Read `METRIC` or `METRIC:WEIGHT`; without a weight it is the published one, or 20 where none was published.

    Raises:
        ValueError: for an unknown metric or a weight that is not a positive number.
    """
    name, _, given = (part.strip() for part in text.partition(":"))
    try:
        direction = metric(name).direction
    except KeyError as error:
        raise ValueError(f"--objective {text!r}: {error.args[0]}") from None
    try:
        weight = float(given) if given else PUBLISHED_WEIGHTS.get(name, DEFAULT_WEIGHT)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"--objective {text!r}: the weight must be a number above 0, for example '{name}:40'")
    return Objective(name, direction, weight)
