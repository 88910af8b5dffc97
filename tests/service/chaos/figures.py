"""What a run of faults found."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figures:
    """Counts, times in seconds, and every broken invariant.

    Attributes:
        seed: of the random choices.
        faults: by kind.
        recovery_s: by kind: from the fault to the victim's next finished trial as a client sees it, with the fault.
        cleanup_s: from the death of a driver to that of the last process below it.
        overlaps_s: how long two driver processes of one study lived at the same time.
        studies: that were checked at their end, by kind of device.
        trials: finished ones of these, with the rounds of the finals.
        runs: drivers that were started for them.
        terms: of the scheduler's lease: how often it changed hands, and 1.
        locked: frozen schedulers whose work nobody took over: they were stopped within a transaction.
        resumed: studies that ended by the rule about lost drivers, or were cancelled, and were resumed.
        unseen: finished trials without an event: the driver died between the two writes.
        late: finished trials that MLflow got by `tuner study sync` only.
        problems: broken invariants.
    """

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    recovery_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cleanup_s: list[float] = field(default_factory=list)
    overlaps_s: list[float] = field(default_factory=list)
    studies: Counter[str] = field(default_factory=Counter)
    trials: int = 0
    runs: int = 0
    terms: int = 0
    locked: int = 0
    resumed: Counter[str] = field(default_factory=Counter)
    unseen: int = 0
    late: int = 0
    problems: list[str] = field(default_factory=list)


def to_json(figures: Figures) -> dict[str, Any]:
    """Return the figures of a run as plain JSON."""
    recovery = sorted(seconds for values in figures.recovery_s.values() for seconds in values)
    kinds = sorted(figures.recovery_s.items())
    return {
        "seed": figures.seed,
        "faults": sum(figures.faults.values()),
        "by_kind": dict(sorted(figures.faults.items())),
        "studies": dict(figures.studies),
        "trials": figures.trials,
        "runs": figures.runs,
        "terms": figures.terms,
        "locked": figures.locked,
        "resumed": dict(figures.resumed),
        "trials_without_event": figures.unseen,
        "trials_by_sync": figures.late,
        "recovery_median_s": recovery[len(recovery) // 2] if recovery else None,
        "recovery_worst_s": recovery[-1] if recovery else None,
        "recovery_by_kind_s": {name: [round(value, 1) for value in sorted(values)] for name, values in kinds},
        "cleanup_worst_s": max(figures.cleanup_s, default=None),
        "overlap_worst_s": max(figures.overlaps_s, default=0.0),
        "overlaps": len(figures.overlaps_s),
        "problems": figures.problems,
    }
