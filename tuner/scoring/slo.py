"""SLOs: thresholds on metrics, and the constraints that a sampler gets from them."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass

from storage.metrics import metric
from tuner.errors import SettingError

_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_PATTERN = re.compile(r"\s*([A-Za-z][\w-]*(?:\.[\w-]+)*)\s*(<=|>=|<|>)\s*(\S+)\s*")

JUST_MISSED = 1e-9
"""Violation of a strict SLO whose value equals its threshold."""

UNMEASURED = 1.0
"""Violation of an SLO whose metric was not measured."""

LARGEST_VIOLATION = 1e300
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
        excess = max(-LARGEST_VIOLATION, min(excess, LARGEST_VIOLATION))
        if self.met(value):
            return min(excess, 0.0)
        return max(excess, JUST_MISSED)


def parse_slo(text: str) -> Slo:
    """Read an SLO such as `p99_tpot_ms<50`.

    Raises:
        SettingError: for another form, an unknown metric or a threshold that is not a finite number.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        rule = "an SLO has the form METRIC<VALUE (or <=, >, >=)"
        raise SettingError("slo", text, rule, "give for example 'p99_tpot_ms<50'")
    name, op, number = match.groups()
    try:
        metric(name)
    except KeyError as error:
        raise SettingError("slo", text, str(error.args[0])) from None
    try:
        threshold = float(number)
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        rule = f"the threshold {number!r} is not a finite number"
        raise SettingError("slo", text, rule, "give for example 'p99_tpot_ms<50'")
    return Slo(name, op, threshold)
