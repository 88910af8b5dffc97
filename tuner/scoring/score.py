"""The scalar score that picks among feasible trials.

The score of a trial relative to a reference (the defaults, trial 0; where they fail or are not measured, the first
trial that was) is the weighted geometric mean of its improvements:

    score = exp( sum_i w_i * ln(r_i) / sum_i w_i )

where r_i = value / reference for a metric that is better when higher and reference / value for one that is better when
lower. The reference scores exactly 1; 1.10 reads "10 % better, all weighed". The sums run over what both runs measured,
so the weights are renormalised. A geometric mean because ratios multiply: twice the throughput at twice the TPOT must
not score above 1 by the order in which the two are averaged, and one tiny latency cannot outweigh everything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from storage.metrics import Direction
from tuner.scoring.objectives import Objective


def improvement(objective: Objective, value: float, reference: float) -> float:
    """Return the factor by which `value` is better than `reference` (1: equal, 2: twice as good)."""
    return value / reference if objective.direction is Direction.MAXIMIZE else reference / value


def score(
    values: Mapping[str, float | None], reference: Mapping[str, float | None], objectives: Sequence[Objective]
) -> float | None:
    """Return the weighted geometric mean of improvements over `reference`; None if nothing can be compared.

    Args:
        values: metric name to value of the trial.
        reference: metric name to value of the reference.
        objectives: metrics with weights; those that either side lacks, or has as 0 or less, are left out.
    """
    total = weighted = 0.0
    for objective in objectives:
        value, base = values.get(objective.metric), reference.get(objective.metric)
        if value is None or base is None or value <= 0 or base <= 0:
            continue
        total += objective.weight
        weighted += objective.weight * math.log(improvement(objective, value, base))
    return math.exp(weighted / total) if total else None
