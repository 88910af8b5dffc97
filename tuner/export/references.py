"""The recorded value of each metric with its interval, and the comparison of a verification with it.

The noise of a metric is estimated from all repeats of all configurations that were measured more than once. With y the
logarithm of a measurement, N the number of measurements and k the number of configurations, the pooled variance is

    s^2 = sum over configurations and repeats of (y - mean of y for the configuration)^2 / (N - k)

It pools the spread within a launch and between launches. The interval around the trial's value m is

    [m * exp(-t * s), m * exp(t * s)],   t = t(0.995, N - k), the quantile of Student's t distribution

It is widened to the relative half-width of `MIN_RELATIVE_HALF_WIDTH`, and to the trial's own extremes. The share p of n
requests that meet their SLOs is widened by its own sampling error, with the adjusted share q = (n p + 2) / (n + 4), to
p - 2.58 sqrt(2 q (1 - q) / n), because the verification is one more sample. Source: Agresti and Coull, The American
Statistician 52 (1998).
Source of the pooled variance: one-way layout, for example Montgomery, Design and Analysis of Experiments, chapter 3.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from records.measured import outcomes_of
from records.metrics import Direction, metric, shown_unit
from records.trials import Provenance, Repeat, TrialOutcome, TrialRecord
from tuner.confidence import t_quantile
from tuner.errors import EXIT_INCONCLUSIVE, EXIT_OURS
from tuner.scoring.compare import pooled_noise
from tuner.scoring.goals import Slo, finite_exp

MIN_RELATIVE_HALF_WIDTH = {"tok/s": 0.10, "req/s": 0.10, "share": 0.0, "ms": 0.30}
"""Unit to the smallest half-width of an interval, relative to the value. A single verification on another day varies
more than repeats in one study; tail latencies of 200 requests vary most."""

MATTERING_CHANGE = {"tok/s": 0.25, "req/s": 0.25, "share": 0.5, "ms": 1.0}
"""Unit to the relative change for the worse from which an interval that still holds it can tell nothing."""

VERIFICATION_CONFIDENCE = 0.99
"""Confidence of the two-sided interval."""

NORMAL_QUANTILE = 2.576
"""The quantile of the normal distribution for that confidence."""

MIN_DEGREES_OF_FREEDOM = 4
"""The quantile is taken at least at this many degrees of freedom; with fewer, no deviation would be detected."""


@dataclass(frozen=True)
class Reference:
    """A metric's recorded value and the interval within which a verification must measure it, in the metric's unit.

    `tells` is False where the interval holds a change for the worse that matters (`MATTERING_CHANGE`): a measurement
    within it is inconclusive.
    """

    value: float
    low: float
    high: float
    tells: bool = True

    def __post_init__(self) -> None:
        """Check the interval.

        Raises:
            ValueError: if a number is not finite, or the interval does not contain the value.
        """
        if not all(map(math.isfinite, (self.value, self.low, self.high))) or not self.low <= self.value <= self.high:
            raise ValueError(f"a reference needs finite low <= value <= high, got {self}")


def references(
    number: int, records: Sequence[TrialRecord], names: Iterable[str], shown: TrialOutcome | None
) -> dict[str, Reference]:
    """Return metric names to the recorded value and interval of a trial; metrics that it lacks are left out.

    Args:
        number: the trial.
        records: trials that were measured with the workload of the trial, rounds included.
        names: the metrics.
        shown: what was measured of the trial, see `records.measured.measured`: the recorded values.
    """
    result = {}
    for name in names:
        found = _by_trial(records, name)
        value = None if shown is None else shown.metric(name)
        if found.get(number) and value is not None:
            recorded = _reference(value, found[number], _half_width(found.values()), _least(name))
            share = name.rpartition(".")[2] == "goodput_share"
            recorded = _with_sampling_error(recorded, _offered(records, number)) if share else recorded
            result[name] = replace(recorded, tells=_tells(name, recorded))
    return result


def _by_trial(records: Sequence[TrialRecord], name: str) -> dict[int, list[float]]:
    """Return trial number to the metric's values in all repeats of all its rounds."""
    result: dict[int, list[float]] = defaultdict(list)
    for record in records:
        if record.outcome is None or record.failure is not None:
            continue
        for repeat in record.outcome.repeats:
            value = repeat.metrics.get(name)
            if value is not None:
                result[record.number].append(value)
    return result


def _half_width(groups: Iterable[Sequence[float]]) -> float:
    """Return t * s, the half-width of the interval of logarithms; 0 if no configuration was measured twice."""
    noise = pooled_noise([math.log(value) for value in group if value > 0] for group in groups)
    if noise is None:
        return 0.0
    degrees = max(noise.degrees, MIN_DEGREES_OF_FREEDOM)
    return t_quantile((1 + VERIFICATION_CONFIDENCE) / 2, degrees) * noise.deviation


def _reference(value: float, values: Sequence[float], half_width: float, min_half_width: float) -> Reference:
    low = min(value * finite_exp(-half_width), value * (1 - min_half_width), *values)
    high = max(value * finite_exp(half_width), value * (1 + min_half_width), *values)
    return Reference(value, low, min(high, sys.float_info.max))


def _tells(name: str, recorded: Reference) -> bool:
    """Return whether a change for the worse that matters is outside of the interval."""
    change = MATTERING_CHANGE[metric(name).unit]
    if metric(name).direction is Direction.MAXIMIZE:
        return recorded.low >= recorded.value * (1 - change)
    return recorded.high <= recorded.value * (1 + change)


def _least(name: str) -> float:
    return MIN_RELATIVE_HALF_WIDTH[metric(name).unit]


def _offered(records: Sequence[TrialRecord], number: int) -> int:
    """Return the fewest requests of a benchmark of the trial."""
    return min(repeat.offered for outcome in outcomes_of(records, number) for repeat in outcome.repeats)


def _with_sampling_error(recorded: Reference, offered: int) -> Reference:
    adjusted = (offered * recorded.value + 2) / (offered + 4)
    error = NORMAL_QUANTILE * math.sqrt(2 * adjusted * (1 - adjusted) / offered)
    low, high = max(0.0, recorded.value - error), min(1.0, recorded.value + error)
    return Reference(recorded.value, min(recorded.low, low), max(recorded.high, high))


INCONCLUSIVE_WORD = "inconclusive"
"""The verdict on a metric within an interval that cannot tell."""

INCONCLUSIVE = (
    "inconclusive: the measurements of the study vary so much that a change that matters would count as within; run "
    "the study again on a quieter machine, or with more rounds"
)
"""What a verification says where a recorded interval cannot tell."""

NOISY = 0.1
"""Coefficient of variation of benchmarks from which a warning is given."""

NOISY_BENCHMARKS = "warning: {name} varies by {share} between the benchmarks; verify again on a quieter machine"

_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Check:
    """One metric or SLO of a verification: its name, the verdict as a word, in capitals if it failed, and its line."""

    name: str
    verdict: str
    line: str


@dataclass(frozen=True)
class Comparison:
    """The result of a verification.

    Attributes:
        lines: one for each metric and each SLO, and warnings.
        failed: whether a metric is worse or was not measured, or an SLO is missed.
        inconclusive: whether a metric is within an interval that is too wide to tell.
        checks: the metrics and SLOs.
    """

    lines: tuple[str, ...]
    failed: bool
    inconclusive: bool = False
    checks: tuple[Check, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of a verification."""
        return EXIT_OURS if self.failed else EXIT_INCONCLUSIVE if self.inconclusive else 0


def compared(recorded: Mapping[str, Reference], slos: Sequence[Slo], repeats: Sequence[Repeat]) -> Comparison:
    """Compare benchmarks of a server with the recorded metrics and the SLOs; the SLO on quality is left out.

    Args:
        recorded: metric names to the recorded values and intervals.
        slos: the SLOs of the study.
        repeats: the benchmarks.
    """
    pooled = TrialOutcome(_ANY_TIME, _ANY_TIME, Provenance.MEASURED, "", "", {}, "", repeats=tuple(repeats))
    checks, warnings = [], []
    for name, reference in recorded.items():
        value = pooled.metric(name)
        verdict = _verdict(name, value, reference)
        if (share := _variation([repeat.metrics.get(name) for repeat in repeats])) > NOISY:
            warnings.append(NOISY_BENCHMARKS.format(name=name, share=f"{share:.0%}"))
        interval = f"[{reference.low:.6g}, {reference.high:.6g}] {shown_unit(name)}".rstrip()
        shown = f"measured {_shown(value)}, recorded {reference.value:.6g} {interval}"
        checks.append(Check(name, verdict, f"{name}: {shown}: {verdict}"))
    for slo in slos:
        if slo.metric != "quality":
            value = pooled.metric(slo.metric)
            verdict = "holds" if slo.met(value) else "MISSED"
            checks.append(Check(f"SLO {slo}", verdict, f"SLO {slo}: measured {_shown(value)}: {verdict}"))
    verdicts = [each.verdict for each in checks]
    failed, inconclusive = any(map(str.isupper, verdicts)), INCONCLUSIVE_WORD in verdicts
    lines = (*(each.line for each in checks), *warnings, *([INCONCLUSIVE] if inconclusive else []))
    return Comparison(lines, failed, inconclusive, tuple(checks))


def _variation(values: Sequence[float | None]) -> float:
    """Return the coefficient of variation; 0 with fewer than two values."""
    present = [value for value in values if value]
    return statistics.stdev(present) / statistics.fmean(present) if len(present) > 1 else 0.0


def _verdict(name: str, value: float | None, reference: Reference) -> str:
    if value is None:
        return "NOT MEASURED"
    if reference.low <= value <= reference.high:
        return "within" if reference.tells else INCONCLUSIVE_WORD
    upwards = metric(name).direction is Direction.MAXIMIZE
    return "better" if (value > reference.high) == upwards else "WORSE"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
