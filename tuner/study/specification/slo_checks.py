"""Refuse SLOs that cannot mean what was meant: a bound on the wrong side, or one that no value meets."""

from __future__ import annotations

from storage.metrics import Direction, metric
from tuner.errors import SettingError
from tuner.scoring.slo import Slo, parse_slo


def check_slo(text: str) -> Slo:
    """Read an SLO that the user gave.

    Raises:
        SettingError: for an SLO that cannot be read, bounds a metric on the side of its good values, or cannot be met.
    """
    slo = parse_slo(text)
    known = metric(slo.metric)
    higher = known.direction is Direction.MAXIMIZE
    if slo.op.startswith("<") is higher:
        corrected = f"{slo.metric}{'>=' if higher else '<'}{slo.threshold:g}"
        better = "higher" if higher else "lower"
        raise SettingError("slo", text, f"{slo.metric} is better when {better}", f"give '{corrected}'")
    if not higher and slo.threshold <= 0:
        raise SettingError("slo", text, f"no {slo.metric} is below {slo.threshold:g}", "give a bound above 0")
    if slo.metric.rpartition(".")[2] in _AT_MOST_1 and (slo.threshold > 1 or (slo.threshold == 1 and slo.op == ">")):
        raise SettingError("slo", text, f"{slo.metric} is at most 1", f"give '{slo.metric}>=1'")
    return slo


_AT_MOST_1 = ("success_rate", "goodput_share")
