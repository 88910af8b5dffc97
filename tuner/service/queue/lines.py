"""An owner's place in one pool: what waits, what runs, and the score that decides whose turn it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.service.queue.rules import START_S
from tuner.service.queue.view import OwnerShare, Running, Waiting


@dataclass
class Line:
    """An owner in the pool of one kind.

    Attributes:
        owner: name.
        weight: share relative to others.
        use: decayed GPU-seconds of this kind.
        waiting: submissions that may start, by priority and then by age.
        held: devices of running studies that stay, and of those that are started now.
        planned: devices that come free soon and are meant for this owner.
        passed: devices that submissions asked for in vain in this decision.
        yieldable: studies that may be asked to yield, the newest first.
        closed: whether the rest of `waiting` waits for one before it.
    """

    owner: str
    weight: float
    use: float
    waiting: Sequence[Waiting] = ()
    held: int = 0
    planned: int = 0
    passed: int = 0
    yieldable: list[Running] = field(default_factory=list)
    closed: bool = False

    def score(self, more: int = 0) -> float:
        """Return the use by weight, in GPU-seconds, if the owner had `more` devices. The smallest one is next."""
        return (self.use + START_S * (self.held + self.planned + more)) / self.weight

    def turn(self) -> float:
        """Return the score after what was asked in vain, so that positions alternate between owners."""
        return self.score(self.passed)


def make_lines(
    kind: str,
    waiting: Mapping[str, Sequence[Waiting]],
    running: Iterable[Running],
    owners: Mapping[str, OwnerShare],
) -> dict[str, Line]:
    """Return the line of each owner who waits or runs in the pool.

    Args:
        kind: the pool's kind.
        waiting: submissions of this kind that may start, by owner, in their order.
        running: runs of this kind that stay.
        owners: shares by name.
    """
    lines: dict[str, Line] = {}

    def line_of(owner: str) -> Line:
        if owner not in lines:
            share = owners.get(owner, OwnerShare())
            lines[owner] = Line(owner, share.weight, share.use.get(kind, 0.0), waiting.get(owner, ()))
        return lines[owner]

    for owner in waiting:
        line_of(owner)
    for run in sorted(running, key=lambda run: (run.started_s, run.id), reverse=True):
        line = line_of(run.owner)
        line.held += len(run.devices)
        if run.may_yield:
            line.yieldable.append(run)
    return lines
