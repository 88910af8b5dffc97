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

NOTHING = 100.0
"""Factor by which something is better than nothing, where a metric is better when higher: a goodput of 0 is measured,
and leaving it out would flatter the configuration that kept no promise at all."""


def improvement(objective: Objective, value: float, reference: float) -> float | None:
    """Return the factor by which `value` is better than `reference` (1: equal, 2: twice as good).

    None where that cannot be said: both are 0, or one is and the metric is better when lower.
    """
    if objective.direction is Direction.MAXIMIZE:
        if value <= 0 or reference <= 0:
            return None if value <= 0 and reference <= 0 else NOTHING if reference <= 0 else 1.0 / NOTHING
        return value / reference
    return reference / value if value > 0 and reference > 0 else None


def score(
    values: Mapping[str, float | None], reference: Mapping[str, float | None], objectives: Sequence[Objective]
) -> float | None:
    """Return the weighted geometric mean of improvements over `reference`; None if nothing can be compared.

    Args:
        values: metric name to value of the trial.
        reference: metric name to value of the reference.
        objectives: metrics with weights; those that either side lacks, or that cannot be compared, are left out.
    """
    total = weighted = 0.0
    for objective in objectives:
        value, base = values.get(objective.metric), reference.get(objective.metric)
        factor = None if value is None or base is None else improvement(objective, value, base)
        if factor is None:
            continue
        total += objective.weight
        weighted += objective.weight * math.log(factor)
    return math.exp(weighted / total) if total else None
