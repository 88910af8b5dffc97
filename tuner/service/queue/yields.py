"""The fair share of each owner, and the running studies that are asked to yield to one below it."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.service.queue.lines import Line
from tuner.service.queue.quotas import Allowance
from tuner.service.queue.rules import YIELD_AFTER_S
from tuner.service.queue.view import Running


def fair_devices(devices: int, claims: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """Return the fair number of devices of each owner, which need not be whole.

    Devices are shared by weight. What an owner cannot use is shared among the others in the same way (max-min fairness
    with weights).

    Args:
        devices: number of devices.
        claims: weight and number of devices that the owner could use, by owner.
    """
    fair: dict[str, float] = {}
    left = float(devices)
    weights = sum(weight for weight, _ in claims.values())
    for name, (weight, wanted) in sorted(claims.items(), key=lambda claim: (claim[1][1] / claim[1][0], claim[0])):
        fair[name] = min(float(wanted), left * weight / weights)
        left -= fair[name]
        weights -= weight
    return fair


class Yields:
    """Chooses runs of one pool to ask.

    Args:
        devices: number of devices of the pool.
        lines: all owners of the pool.
        allowances: what quotas leave, by owner.
        now_s: the time.
    """

    def __init__(
        self, devices: int, lines: Mapping[str, Line], allowances: Mapping[str, Allowance], now_s: float
    ) -> None:
        self._lines, self._now_s = lines, now_s
        self._left = any(line.yieldable for line in lines.values())
        claims = {
            name: (line.weight, line.held + allowances[name].claim(line.waiting))
            for name, line in (lines.items() if self._left else ())
        }
        self._fair = fair_devices(devices, claims)
        self.asked: list[Running] = []

    def ask(self, line: Line, least: int, missing: int, urgent: bool) -> int:
        """Ask for devices, and return how many will come free: `missing` or more, else 0.

        Args:
            line: the owner for whom devices are asked; its `planned` devices do not contain these yet.
            least: devices that the submission needs to start.
            missing: how many of them are neither free nor about to be.
            urgent: whether free devices are kept for the submission. It may then exceed its owner's fair share, and
                studies are asked as soon as they have had time for a trial.
        """
        if not self._left or not (urgent or line.held + line.planned < self._fair[line.owner]):
            return 0
        chosen: list[Running] = []
        coming = 0
        while coming < missing:
            run = self._next(line, least, urgent)
            if run is None:
                self._undo(chosen)
                return 0
            self._take(run)
            chosen.append(run)
            coming += len(run.devices)
        self._keep_needed(chosen, missing)
        return sum(len(run.devices) for run in chosen)

    def _next(self, line: Line, least: int, urgent: bool) -> Running | None:
        """Return the newest run, of the owner with the highest score, whose devices make the shares fairer."""
        others = [other for other in self._lines.values() if other.yieldable and other is not line]
        for other in sorted(others, key=lambda other: (-other.score(), other.owner)):
            for run in other.yieldable:
                if self._may_ask(other, run, line, least, urgent):
                    return run
        return None

    def _may_ask(self, other: Line, run: Running, line: Line, least: int, urgent: bool) -> bool:
        """Return whether a run has lasted long enough, and its owner stays behind in the order of turns."""
        lasted_s = self._now_s - run.started_s
        if urgent:
            return lasted_s >= run.trial_s and other.score() > line.score()
        return lasted_s >= YIELD_AFTER_S and other.score(-len(run.devices)) >= line.score(least)

    def _take(self, run: Running) -> None:
        line = self._lines[run.owner]
        line.held -= len(run.devices)
        line.yieldable.remove(run)

    def _undo(self, runs: list[Running]) -> None:
        for run in runs:
            line = self._lines[run.owner]
            line.held += len(run.devices)
            line.yieldable.append(run)
            line.yieldable.sort(key=lambda run: (run.started_s, run.id), reverse=True)

    def _keep_needed(self, chosen: list[Running], missing: int) -> None:
        """Leave out runs that later choices made needless, and record the others."""
        coming = sum(len(run.devices) for run in chosen)
        for run in list(chosen):
            if coming - len(run.devices) >= missing:
                coming -= len(run.devices)
                chosen.remove(run)
                self._undo([run])
        self.asked += chosen
        self._left = any(line.yieldable for line in self._lines.values())
