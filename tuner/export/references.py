"""What a verification is held to: what the study measured, and how far another launch may lie from it.

For each metric the study tells its own noise. On logarithms, with every repeat of every configuration that was measured
more than once,

    s2 = sum over configurations and repeats of (y - mean of the configuration)^2 / (N - number of configurations)

which pools the spread within a launch and between launches. A verification's median lies, unless something is wrong,
within  median * exp(+- t(0.995, df) * s)  or within the metric's floor, whichever is wider, or between the trial's own
extremes. Source of the pooled variance: one-way layout, e.g. Montgomery, Design and Analysis of Experiments, chapter 3.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from storage.metrics import metric
from storage.records import TrialRecord
from tuner.export.serve_script import Reference
from tuner.scoring.compare import t_quantile

FLOOR = {"tok/s": 0.10, "req/s": 0.10, "share": 0.0, "ms": 0.30}
"""Half-width of the narrowest interval that a verification is held to, as a share of the value, by unit: one run on a
machine that is never quite the same; tail latencies of 200 requests vary most."""

CONFIDENCE = 0.99
FEWEST_DEGREES = 4
"""With fewer degrees of freedom than this, its quantile is taken: the true one would be too wide to refuse anything."""


def references(number: int, records: Sequence[TrialRecord], names: Iterable[str]) -> dict[str, Reference]:
    """Return the interval of each metric for a trial's configuration; a metric that it lacks is left out.

    Args:
        number: the trial.
        records: every trial of the study, re-measurements included.
        names: metrics by name.
    """
    found = {}
    for name in names:
        measured = _by_trial(records, name)
        if measured.get(number):
            found[name] = _reference(measured[number], _half_width(measured.values()), FLOOR[metric(name).unit])
    return found


def _by_trial(records: Sequence[TrialRecord], name: str) -> dict[int, list[float]]:
    """Return every repeat's value of a metric by trial, over all its rounds."""
    result: dict[int, list[float]] = defaultdict(list)
    for record in records:
        if record.outcome is None or record.outcome.failure is not None:
            continue
        for repeat in record.outcome.repeats:
            value = repeat.metrics.get(name)
            if value is not None:
                result[record.number].append(value)
    return result


def _half_width(groups: Iterable[Sequence[float]]) -> float:
    """Return t * s of the pooled logarithms; 0 where nothing was measured twice."""
    squares, degrees = 0.0, 0
    for group in groups:
        logs = [math.log(value) for value in group if value > 0]
        if len(logs) > 1:
            squares += statistics.variance(logs) * (len(logs) - 1)
            degrees += len(logs) - 1
    if degrees == 0:
        return 0.0
    return t_quantile((1 + CONFIDENCE) / 2, max(degrees, FEWEST_DEGREES)) * math.sqrt(squares / degrees)


def _reference(values: Sequence[float], half: float, floor: float) -> Reference:
    middle = statistics.median(values)
    low = min(middle * math.exp(-half), middle * (1 - floor), *values)
    high = max(middle * math.exp(half), middle * (1 + floor), *values)
    return Reference(middle, low, high)
