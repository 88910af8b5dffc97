"""Compare the measurements of a verification with what the study recorded, as `best_serve.sh --verify` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from storage.metrics import Direction, metric
from storage.records import Provenance, Repeat, TrialOutcome
from tuner.export.references import Reference
from tuner.scoring.slo import Slo

_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Comparison:
    """The result of a verification.

    Attributes:
        lines: one for each metric and each SLO.
        failed: whether a metric is worse or was not measured, or an SLO is missed.
    """

    lines: tuple[str, ...]
    failed: bool


def compared(recorded: Mapping[str, Reference], slos: Sequence[Slo], repeats: Sequence[Repeat]) -> Comparison:
    """Compare benchmarks of a server with the recorded metrics and the SLOs; the SLO on quality is left out.

    Args:
        recorded: metric names to the recorded values and intervals.
        slos: the SLOs of the study.
        repeats: the benchmarks.
    """
    pooled = TrialOutcome(_ANY_TIME, _ANY_TIME, Provenance.MEASURED, "", "", {}, "", repeats=tuple(repeats))
    lines, failed = [], False
    for name, reference in recorded.items():
        value = pooled.metric(name)
        verdict = _verdict(name, value, reference)
        failed |= verdict.isupper()
        interval = f"[{reference.low:.6g}, {reference.high:.6g}]"
        lines.append(f"{name}: measured {_shown(value)}, recorded {reference.value:.6g} {interval}: {verdict}")
    for slo in slos:
        if slo.metric != "quality":
            value = pooled.metric(slo.metric)
            held = slo.met(value)
            failed |= not held
            lines.append(f"SLO {slo}: measured {_shown(value)}: {'holds' if held else 'MISSED'}")
    return Comparison(tuple(lines), failed)


def _verdict(name: str, value: float | None, reference: Reference) -> str:
    if value is None:
        return "NOT MEASURED"
    if reference.low <= value <= reference.high:
        return "within"
    upwards = metric(name).direction is Direction.MAXIMIZE
    return "better" if (value > reference.high) == upwards else "WORSE"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
