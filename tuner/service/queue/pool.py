"""The decision for one kind of devices: progressive filling by fair share, with backfill and kept devices."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from tuner.service.queue import reasons
from tuner.service.queue.lines import Line
from tuner.service.queue.quotas import Allowance
from tuner.service.queue.rules import MOST_PASSED_S
from tuner.service.queue.view import Start, Waiting
from tuner.service.queue.yields import Yields


class Pool:
    """Devices of one kind, and who gets them.

    Args:
        kind: the kind.
        total: number of devices of the kind.
        free: names of the free ones.
        coming: number of devices that come free at the end of running trials.
        lines: the owners.
        allowances: what quotas leave, by owner. Starts are counted in them.
        now_s: the time.
    """

    def __init__(
        self,
        kind: str,
        total: int,
        free: list[str],
        coming: int,
        lines: Mapping[str, Line],
        allowances: Mapping[str, Allowance],
        now_s: float,
    ) -> None:
        self._kind, self._total, self._free, self._coming = kind, total, free, coming
        self._lines, self._allowances, self._now_s = lines, allowances, now_s
        self._kept = 0
        self._kept_for_one = False
        self._behind = 0
        self._smallest_passed = total + 1
        self._granted: dict[str, list[str]] = {}
        self.yields = Yields(total, lines, allowances, now_s)
        self.waits: dict[str, str] = {}

    @property
    def starts(self) -> list[Start]:
        """Submissions to start, in the order of their turns."""
        return [Start(name, tuple(devices)) for name, devices in self._granted.items()]

    def fill(self) -> None:
        """Give each owner a turn after the other, always the one with the smallest score, until all have been asked.

        A turn starts the owner's next submission with its fewest devices, or adds one device to the one that was
        started last. Each device counts at once, so owners with equal scores alternate.
        """
        turns = [
            (line.turn(), line.waiting[0].queued_s, owner, 0) for owner, line in self._lines.items() if line.waiting
        ]
        heapq.heapify(turns)
        while turns:
            _, _, owner, place = turns[0]
            line = self._lines[owner]
            if not (place and self._grow(line, line.waiting[place - 1])):
                if place == len(line.waiting):
                    heapq.heappop(turns)
                    continue
                self._place(line, line.waiting[place])
                place += 1
            queued_s = line.waiting[min(place, len(line.waiting) - 1)].queued_s
            heapq.heapreplace(turns, (line.turn(), queued_s, owner, place))

    def _available(self) -> int:
        return 0 if self._kept_for_one else len(self._free) - self._kept

    def _grow(self, line: Line, submission: Waiting) -> bool:
        """Add a device to a submission that was started in this decision."""
        devices = self._granted.get(submission.id)
        if devices is None or len(devices) >= submission.gpus or self._available() < 1:
            return False
        if self._allowances[line.owner].most(submission) < 1:
            return False
        self._grant(line, submission, 1)
        return True

    def _grant(self, line: Line, submission: Waiting, count: int) -> None:
        self._granted.setdefault(submission.id, []).extend(self._free[:count])
        del self._free[:count]
        line.held += count
        self._allowances[line.owner].grant(submission, count)

    def _place(self, line: Line, submission: Waiting) -> None:
        """Start a submission, or keep devices for it, or let others pass it."""
        allowance = self._allowances[line.owner]
        if allowance.most(submission) < submission.least_gpus:
            self.waits[submission.id] = allowance.reason(submission)
        elif not line.closed and submission.least_gpus <= self._available():
            self._grant(line, submission, submission.least_gpus)
        else:
            self.waits[submission.id] = self._wait(line, submission)
            self._behind += 1

    def _wait(self, line: Line, submission: Waiting) -> str:
        """Decide what is done for a submission that does not fit, and return why it waits.

        No study is asked to yield where a submission that had its turn before would take its devices.
        """
        least, free = submission.least_gpus, self._available()
        if self._kept_for_one or line.closed:
            line.passed += least
            return self._reason(free, least) if self._kept_for_one else reasons.BEHIND_OWN
        overdue = self._now_s - submission.queued_s >= MOST_PASSED_S
        missing = least - free - self._coming
        if missing > 0 and least < self._smallest_passed:
            self._coming += self.yields.ask(line, least, missing, overdue and missing < least)
        if least <= free + self._coming:
            soon = min(self._coming, least)
            self._coming -= soon
            self._kept += least - soon
            line.planned += least
            return reasons.until_trials_end(self._kind, soon)
        line.passed += least
        self._smallest_passed = min(self._smallest_passed, least)
        reason = self._reason(free, least)
        if overdue and self._within_reach(line, line.held) >= least:
            line.closed = True
            if self._within_reach(line, 0) >= least:
                self._kept_for_one = True
                reason += reasons.KEPT if free else ""
        return reason

    def _within_reach(self, line: Line, own: int) -> int:
        """Return the devices that come free before the owner's turn passes: no owner who is next holds them."""
        score = line.score()
        others = sum(other.held for other in self._lines.values() if other is not line and other.score() > score)
        return self._available() + self._coming + others + own

    def _reason(self, free: int, least: int) -> str:
        if free or not self._behind:
            return reasons.too_few_free(self._kind, self._total, free, least)
        return reasons.behind(self._behind)
