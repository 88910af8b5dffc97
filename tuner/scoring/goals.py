"""The goals of a study: objectives with weights, SLOs as constraints, and the verdict and score of a trial.

The score of a trial relative to a reference (the defaults, trial 0; where they fail or are not measured, the first
trial that was) is the weighted geometric mean of its improvements:

    score = exp( sum_i w_i * ln(r_i) / sum_i w_i )

where r_i = value / reference for a metric that is better when higher and reference / value for one that is better when
lower. The reference scores exactly 1; a score of 1.10 means 10 % better, weighted over all metrics. The sums run over
the metrics that both sides measured, so the weights are renormalised.

The mean is geometric because improvements are ratios. Twice the throughput at twice the TPOT scores 1 with equal
weights, whichever of the two is the reference, and one tiny latency cannot outweigh everything else.

A metric that is better when higher may be 0, for example a goodput; its logarithm would be infinite. Such a 0 counts as
a hundredth of the smallest positive value that it is compared with. A latency of 0 cannot be compared, nor can a value
that is not finite.

Scores are finite: ratios beyond 1e-300 to 1e300 count as these limits.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from records.metrics import PER_GPU, Direction, metric
from records.trials import Culprit, TrialOutcome, Verdict
from tuner.errors import SettingError

PUBLISHED_WEIGHTS = {"output_throughput": 40.0, "p99_tpot_ms": 20.0, "p99_ttft_ms": 15.0, "success_rate": 10.0}
"""The published weights of the contest; the remaining 15 are for code quality and documentation."""

_DEFAULT_WEIGHT = 20.0
_LARGEST_WEIGHT = 1e9


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
        weight = float(given) if given else PUBLISHED_WEIGHTS.get(PER_GPU.get(name, name), _DEFAULT_WEIGHT)
    except ValueError:
        weight = math.nan
    if not 0 < weight <= _LARGEST_WEIGHT:
        rule = f"the weight must be a number above 0 and at most {_LARGEST_WEIGHT:g}"
        raise SettingError("objective", text, rule, f"give for example '{name}:40'")
    return Objective(name, direction, weight)


_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_SIGNS = str.maketrans({"≤": "<=", "≥": ">="})
_PATTERN = re.compile(r"\s*([A-Za-z][\w-]*(?:\.[\w-]+)*)\s*(<=|>=|<|>)\s*(\S*?[\d.]|\S+?)\s*(ms|s|%)?\s*")
_UNITS = {"ms": {"ms": 1.0, "s": 1000.0}, "share": {"%": 0.01}}
"""Units that a threshold may have, by the unit of its metric, with their size in it."""

_JUST_MISSED = 1e-9
"""Violation of a strict SLO whose value equals its threshold."""

UNMEASURED = 1.0
"""Violation of an SLO whose metric was not measured."""

_LARGEST_VIOLATION = 1e300
"""Violations are limited to plus and minus this, so that they are finite for every threshold."""


@dataclass(frozen=True)
class Slo:
    """A service-level objective, for example p99 TPOT < 50 ms."""

    metric: str
    op: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.metric}{self.op}{self.threshold:g}"

    def met(self, value: float | None) -> bool:
        """Return True if `value` satisfies the SLO; None satisfies none."""
        return value is not None and bool(_OPERATORS[self.op](value, self.threshold))

    def violation(self, value: float | None) -> float:
        """Return the constraint for a sampler: at most 0 if the SLO is met, else the excess relative to the threshold.

        The violation is (value - threshold) / |threshold| for an upper bound, with the opposite sign for a lower
        bound; for a threshold of 0 the divisor is 1. Relative violations can be added up over metrics with different
        units, as Optuna's TPE does.
        """
        if value is None or not math.isfinite(value):
            return UNMEASURED
        excess = (value - self.threshold) / (abs(self.threshold) or 1.0)
        if self.op.startswith(">"):
            excess = -excess
        excess = max(-_LARGEST_VIOLATION, min(excess, _LARGEST_VIOLATION))
        if self.met(value):
            return min(excess, 0.0)
        return max(excess, _JUST_MISSED)


def parse_slo(text: str) -> Slo:
    """Read an SLO such as `p99_tpot_ms<50`, whose threshold may have a unit: `p99_ttft_ms<1.5s`.

    Raises:
        SettingError: for another form, an unknown metric or a threshold that is not a finite number.
    """
    match = _PATTERN.fullmatch(text.translate(_SIGNS))
    if match is None:
        rule = "an SLO has the form METRIC<VALUE (or <=, >, >=)"
        raise SettingError("slo", text, rule, "give for example 'p99_tpot_ms<50'")
    name, op, number, unit = match.groups()
    try:
        own = metric(name).unit
    except KeyError as error:
        raise SettingError("slo", text, str(error.args[0])) from None
    size = 1.0 if unit is None else _UNITS.get(own, {}).get(unit)
    if size is None:
        raise SettingError("slo", text, f"{name} is in {own}, not in {unit}", "leave the unit out")
    try:
        threshold = float(f"{float(number) * size:.15g}")  # 99.9 % is 0.999
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        rule = f"the threshold {number!r} is not a finite number"
        raise SettingError("slo", text, rule, "give for example 'p99_tpot_ms<50'")
    return Slo(name, op, threshold)


def distance_of(violations: Iterable[float]) -> float:
    """Return the distance to the SLOs with these violations; 0 if every SLO is met."""
    return math.fsum(math.log1p(violation) for violation in violations if violation > 0)


_ZERO_RATIO = 0.01
"""What a 0 counts as, relative to the smallest positive value that it is compared with."""

_LARGEST_RATIO = 1e300
"""Ratios are limited to this and its inverse, so that neither they nor their logarithms overflow."""

_LARGEST_LOG = math.log(_LARGEST_RATIO)


def finite_exp(logarithm: float) -> float:
    """Return `exp(logarithm)`, limited to between `1 / _LARGEST_RATIO` and `_LARGEST_RATIO`."""
    return math.exp(max(-_LARGEST_LOG, min(logarithm, _LARGEST_LOG)))


def log_values(objective: Objective, values: Sequence[float | None]) -> list[float | None]:
    """Return the logarithm of each value, negated where lower is better; None for a value that cannot be compared.

    The difference between two results is the logarithm of an improvement.
    """
    comparable = _comparable(objective, values)
    sign = 1.0 if objective.direction is Direction.MAXIMIZE else -1.0
    return [None if value is None else sign * math.log(value) for value in comparable]


def improvement(objective: Objective, value: float, reference: float) -> float | None:
    """Return the factor by which `value` is better than `reference`: 1 is equal, 2 is twice as good.

    None if the two cannot be compared: both are 0, or one is and lower is better, or one is not finite.
    """
    value_, reference_ = _comparable(objective, [value, reference])
    if value_ is None or reference_ is None:
        return None
    ratio = value_ / reference_ if objective.direction is Direction.MAXIMIZE else reference_ / value_
    return max(1 / _LARGEST_RATIO, min(ratio, _LARGEST_RATIO))


def score(
    values: Mapping[str, float | None], reference: Mapping[str, float | None], objectives: Sequence[Objective]
) -> float | None:
    """Return the weighted geometric mean of improvements over `reference`; None if nothing can be compared.

    Metrics that either side lacks, or that cannot be compared, are left out.
    """
    improvements: list[tuple[float, float]] = []
    for objective in objectives:
        value, base = values.get(objective.metric), reference.get(objective.metric)
        factor = None if value is None or base is None else improvement(objective, value, base)
        if factor is not None:
            improvements.append((objective.weight, math.log(factor)))
    log_score = weighted_mean(improvements)
    return None if log_score is None else finite_exp(log_score)


def log_scores(runs: Sequence[Mapping[str, float | None]], objectives: Sequence[Objective]) -> list[float]:
    """Return the logarithm of the score of each run, up to one constant that all runs share.

    A metric that any run lacks, or that cannot be compared in any run, is left out of all: otherwise the runs' weights
    would differ, and with them the constant.
    """
    columns: list[tuple[float, list[float]]] = []
    for objective in objectives:
        logs = log_values(objective, [run.get(objective.metric) for run in runs])
        present = [each for each in logs if each is not None]
        if len(present) == len(runs):
            columns.append((objective.weight, present))
    means = (weighted_mean([(weight, column[index]) for weight, column in columns]) for index in range(len(runs)))
    return [0.0 if mean is None else mean for mean in means]


def weighted_mean(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of the second elements, weighted by the first; None without any."""
    total = weighted = 0.0
    for weight, value in pairs:
        total += weight
        weighted += weight * value
    return weighted / total if total else None


def _comparable(objective: Objective, values: Sequence[float | None]) -> list[float | None]:
    """Return the values with each 0 of a maximised metric replaced; None for what cannot be compared."""
    finite = [value if value is not None and math.isfinite(value) else None for value in values]
    positive = [value for value in finite if value is not None and value > 0]
    floor = None
    if positive and objective.direction is Direction.MAXIMIZE:
        floor = _ZERO_RATIO * min(positive) or math.ulp(0.0)
    return [None if value is None else value if value > 0 else floor for value in finite]


FAILED = "failed"
FAILED_VIOLATION = 10.0
"""Constraint value of a configuration that failed.

An SLO that is missed by a factor of ten has the violation 9, so a sampler prefers a slow configuration to one that
fails."""


@dataclass(frozen=True)
class Goals:
    """The goals of a study; the success rate is one of the objectives that are `scored` in every study."""

    objectives: tuple[Objective, ...]
    slos: tuple[Slo, ...]
    scored: tuple[Objective, ...]

    @property
    def names(self) -> list[str]:
        """The metrics of the objectives, then those of the SLOs; each once."""
        metrics = [*(each.metric for each in self.objectives), *(each.metric for each in self.slos)]
        return list(dict.fromkeys(metrics))

    def has_objective(self, name: str) -> bool:
        """Return whether a metric is an objective."""
        return any(objective.metric == name for objective in self.objectives)

    def verdict(self, outcome: TrialOutcome, reference: Mapping[str, float | None] | None) -> Verdict | None:
        """Return the verdict, without a score while the reference's metrics are None, and of a trial that was cut.

        None where the configuration is not at fault for a failure.
        """
        values = {objective.metric: outcome.metric(objective.metric) for objective in self.objectives}
        if outcome.failure is not None:
            if outcome.failure.culprit is not Culprit.CONFIGURATION:
                return None
            return Verdict(values, {FAILED: FAILED_VIOLATION}, None)
        if outcome.cut is not None:
            return Verdict(values, outcome.cut.violations, None)
        constraints = {str(slo): slo.violation(outcome.metric(slo.metric)) for slo in self.slos}
        if None in values.values():
            constraints[FAILED] = FAILED_VIOLATION
        measured = self.metrics(outcome)
        return Verdict(values, constraints, None if reference is None else score(measured, reference, self.scored))

    def gain_at_most(self, outcome: TrialOutcome) -> float | None:
        """Return the bound on the weighted mean of the objectives' logarithmic gains of a trial that was cut short.

        The success rate, which every score has, is taken as that of the reference.
        """
        most = None if outcome.cut is None else outcome.cut.score_at_most
        if most is None:
            return None
        return math.log(most) * sum(each.weight for each in self.scored) / sum(each.weight for each in self.objectives)

    def metrics(self, outcome: TrialOutcome) -> dict[str, float | None]:
        """Return the outcome's value of every metric that the score weighs."""
        return {objective.metric: outcome.metric(objective.metric) for objective in self.scored}
