"""Compare the measurements of a verification with what the study recorded, as `best_serve.sh --verify` does."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from storage.metrics import Direction, metric
from storage.records import Provenance, Repeat, TrialOutcome
from tuner.errors import EXIT_INCONCLUSIVE, EXIT_OURS
from tuner.export.references import Reference
from tuner.scoring.slo import Slo

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
class Comparison:
    """The result of a verification.

    Attributes:
        lines: one for each metric and each SLO, and warnings.
        failed: whether a metric is worse or was not measured, or an SLO is missed.
        inconclusive: whether a metric is within an interval that is too wide to tell.
    """

    lines: tuple[str, ...]
    failed: bool
    inconclusive: bool = False

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
    lines, warnings, failed, verdicts = [], [], False, set()
    for name, reference in recorded.items():
        value = pooled.metric(name)
        verdict = _verdict(name, value, reference)
        verdicts.add(verdict)
        failed |= verdict.isupper()
        if (share := _variation([repeat.metrics.get(name) for repeat in repeats])) > NOISY:
            warnings.append(NOISY_BENCHMARKS.format(name=name, share=f"{share:.0%}"))
        interval = f"[{reference.low:.6g}, {reference.high:.6g}]"
        lines.append(f"{name}: measured {_shown(value)}, recorded {reference.value:.6g} {interval}: {verdict}")
    for slo in slos:
        if slo.metric != "quality":
            value = pooled.metric(slo.metric)
            held = slo.met(value)
            failed |= not held
            lines.append(f"SLO {slo}: measured {_shown(value)}: {'holds' if held else 'MISSED'}")
    inconclusive = "inconclusive" in verdicts
    return Comparison((*lines, *warnings, *([INCONCLUSIVE] if inconclusive else [])), failed, inconclusive)


def _variation(values: Sequence[float | None]) -> float:
    """Return the coefficient of variation; 0 with fewer than two values."""
    present = [value for value in values if value]
    return statistics.stdev(present) / statistics.fmean(present) if len(present) > 1 else 0.0


def _verdict(name: str, value: float | None, reference: Reference) -> str:
    if value is None:
        return "NOT MEASURED"
    if reference.low <= value <= reference.high:
        return "within" if reference.tells else "inconclusive"
    upwards = metric(name).direction is Direction.MAXIMIZE
    return "better" if (value > reference.high) == upwards else "WORSE"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
