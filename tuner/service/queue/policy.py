"""Decides what starts, what yields and why the others wait: a function of plain data, see docs/design/service.md.

Each kind of devices is a pool of its own, filled by fair share with backfill and kept devices."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.service.queue import reasons
from tuner.service.queue.quotas import Allowance, allowances, quota_yields
from tuner.service.queue.reasons import BEHIND_OWN_QUOTA, no_such_devices
from tuner.service.queue.rules import MOST_PASSED_S, START_S, YIELD_AFTER_S
from tuner.service.queue.view import Decisions, OwnerShare, QueueView, Running, Start, Waiting


@dataclass
class Line:
    """An owner in the pool of one kind.

    Attributes:
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

    `waiting` has what may start, by owner, in its order; `running` are the runs that stay.
    """
    newest = sorted(running, key=lambda run: (run.started_s, run.id), reverse=True)
    lines: dict[str, Line] = {}
    for owner in dict.fromkeys([*waiting, *(run.owner for run in newest)]):
        share = owners.get(owner, OwnerShare())
        lines[owner] = Line(owner, share.weight, share.use.get(kind, 0.0), waiting.get(owner, ()))
    for run in newest:
        line = lines[run.owner]
        line.held += len(run.devices)
        if run.may_yield:
            line.yieldable.append(run)
    return lines


def fair_devices(devices: int, claims: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """Return the fair number of devices of each owner, which need not be whole.

    Devices are shared by weight. What an owner cannot use is shared among the others in the same way (max-min fairness
    with weights). `claims` has the weight, and the number of devices that the owner could use.
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
    """Chooses runs of one pool to ask."""

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


class Pool:
    """Devices of one kind, and who gets them.

    `waiting` has what may start, by owner, in its order. `leaving` names the runs that are asked to yield in this
    decision. Starts are counted in the allowances.
    """

    def __init__(
        self,
        view: QueueView,
        kind: str,
        waiting: Mapping[str, Sequence[Waiting]],
        allowances: Mapping[str, Allowance],
        leaving: Collection[str],
    ) -> None:
        runs = [run for run in view.running if run.kind == kind]
        stay = [run for run in runs if not (run.leaving or run.id in leaving)]
        busy = {device for run in runs for device in run.devices}
        self._kind, self._total, self._now_s = kind, len(view.devices[kind]), view.now_s
        self._free = [device for device in view.devices[kind] if device not in busy]
        self._coming = sum(len(run.devices) for run in runs) - sum(len(run.devices) for run in stay)
        self._lines = make_lines(kind, waiting, stay, view.owners)
        self._allowances = allowances
        self._kept = 0
        self._kept_for_one = False
        self._behind = 0
        self._smallest_passed = self._total + 1
        self._granted: dict[str, list[str]] = {}
        self.yields = Yields(self._total, self._lines, allowances, view.now_s)
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


def decide(view: QueueView) -> Decisions:
    """Return the decisions for a view; equal views give equal decisions.

    Each kind of devices is a pool of its own. Quotas of devices and of GPU-hours count all kinds.
    """
    allowed = allowances(view)
    asked = quota_yields(view)
    leaving = {run.id for run in asked}
    waits: dict[str, str] = {}
    waiting = _eligible(view, allowed, waits)
    starts: list[Start] = []
    yields = [run.id for run in asked]
    for kind in sorted(waiting):
        pool = Pool(view, kind, waiting[kind], allowed, leaving)
        pool.fill()
        starts += pool.starts
        yields += [run.id for run in pool.yields.asked]
        waits |= pool.waits
    return Decisions(tuple(starts), tuple(yields), waits)


def _eligible(
    view: QueueView, allowed: dict[str, Allowance], waits: dict[str, str]
) -> dict[str, dict[str, list[Waiting]]]:
    """Return the submissions that may start by kind and owner, by priority and age; add the reasons of the others."""
    by_owner: dict[str, list[Waiting]] = defaultdict(list)
    for submission in sorted(view.waiting, key=lambda each: (-each.priority, each.created_s, each.id)):
        total, least = len(view.devices.get(submission.kind, ())), submission.least_gpus
        never = no_such_devices(submission.kind, total, least) if least > total else None
        never = never or allowed[submission.owner].never(submission)
        if never is None:
            by_owner[submission.owner].append(submission)
        else:
            waits[submission.id] = never
    found: dict[str, dict[str, list[Waiting]]] = defaultdict(lambda: defaultdict(list))
    for owner, submissions in by_owner.items():
        end = _held_back(submissions, allowed[owner], view.now_s)
        for submission in submissions[:end]:
            found[submission.kind][owner].append(submission)
        for submission in submissions[end:]:
            waits[submission.id] = _held_back_reason(submission, allowed[owner])
    return found


def _held_back(submissions: Sequence[Waiting], allowance: Allowance, now_s: float) -> int:
    """Return from which place on an owner's submissions wait for one before them.

    One that the quotas hold back for longer than `MOST_PASSED_S` is not passed any more, because its owner's later
    ones could use up the quotas for ever.
    """
    for place, submission in enumerate(submissions):
        if now_s - submission.queued_s >= MOST_PASSED_S and allowance.most(submission) < submission.least_gpus:
            return place + 1
    return len(submissions)


def _held_back_reason(submission: Waiting, allowance: Allowance) -> str:
    """Return the quota that holds the submission back itself, or that it waits behind another one."""
    if allowance.most(submission) < submission.least_gpus:
        return allowance.reason(submission)
    return BEHIND_OWN_QUOTA
