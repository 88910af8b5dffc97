"""Objectives: the metrics that a study optimises, each with its direction and its weight in the score."""

from __future__ import annotations

import math
from dataclasses import dataclass

from storage.metrics import PER_GPU, Direction, metric
from tuner.errors import SettingError

PUBLISHED_WEIGHTS = {"output_throughput": 40.0, "p99_tpot_ms": 20.0, "p99_ttft_ms": 15.0, "success_rate": 10.0}
"""The published weights of the contest; the remaining 15 are for code quality and documentation."""

DEFAULT_WEIGHT = 20.0
LARGEST_WEIGHT = 1e9


@dataclass(frozen=True)
class Objective:
    """One metric to optimise; `weight` is its weight in the score before normalisation."""

    metric: str
    direction: Direction
    weight: float

    def __str__(self) -> str:
        return f"{self.metric}:{self.weight:g}"


def parse_objective(text: str) -> Objective:
    """Read `METRIC` or `METRIC:WEIGHT`; the default weight is the published one, or 20 where none was published.

    A rate for each GPU has the weight of the rate.

    Raises:
        SettingError: for an unknown metric or a weight that is not a positive number.
    """
    name, _, given = (part.strip() for part in text.partition(":"))
    try:
        direction = metric(name).direction
    except KeyError as error:
        raise SettingError("objective", text, str(error.args[0])) from None
    try:
        weight = float(given) if given else PUBLISHED_WEIGHTS.get(PER_GPU.get(name, name), DEFAULT_WEIGHT)
    except ValueError:
        weight = math.nan
    if not 0 < weight <= LARGEST_WEIGHT:
        rule = f"the weight must be a number above 0 and at most {LARGEST_WEIGHT:g}"
        raise SettingError("objective", text, rule, f"give for example '{name}:40'")
    return Objective(name, direction, weight)
