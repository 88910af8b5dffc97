"""A discrete-event simulation of the queue: the real policy on a virtual clock, studies that only use up time."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.service.traffic import Study
from storage.service.records import Owner
from tuner.service.queue.policy import decide
from tuner.service.queue.rules import WEEK_S
from tuner.service.queue.shares import Interval, decayed, decayed_use, intervals_of_running, week_use
from tuner.service.queue.view import Decisions, OwnerShare, QueueView, Running, Waiting

DRIVER_START_S = 30.0
"""Devices are held this long before the first trial of a run."""
TICK_S = 60.0
"""Longest time between two decisions."""
ROUNDING_S = 1e-6


@dataclass
class Outcome:
    """What happened.

    Attributes:
        use_s: GPU-seconds by owner.
        busy_s: GPU-seconds that all devices were busy, starts of drivers included.
        start_s: GPU-seconds of the starts of drivers.
        waits_s: time from submission to the first start, by study.
        unstarted_s: time since submission at the end, of studies that have not started.
        finished: number of studies that ended.
        yields: number of requests to yield.
        violations: instants at which a quota was exceeded.
        most_week_hours: most GPU-hours in seven days, by owner.
        decisions_s: processor time of each decision.
        most_waiting: most waiting submissions at one decision.
        all_waiting_s: time in which every owner had a waiting submission of each kind.
        longest_without_s: longest time in which an owner without quotas waited for a kind and had no device of it.
    """

    use_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    busy_s: float = 0.0
    start_s: float = 0.0
    waits_s: dict[str, float] = field(default_factory=dict)
    unstarted_s: dict[str, float] = field(default_factory=dict)
    finished: int = 0
    yields: int = 0
    violations: int = 0
    most_week_hours: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    decisions_s: list[float] = field(default_factory=list)
    most_waiting: int = 0
    all_waiting_s: float = 0.0
    longest_without_s: float = 0.0


@dataclass
class Run:
    """A study on its devices, from `started_s` until `ends_s`, which a request to yield brings forward."""

    study: Study
    devices: tuple[str, ...]
    started_s: float
    ends_s: float
    leaving: bool = False

    def yield_at(self, now_s: float) -> None:
        """End at the next end of a trial."""
        begun_s = self.started_s + DRIVER_START_S
        trials = max(math.ceil((now_s - begun_s) / self.study.trial_s), 1)
        self.ends_s = min(self.ends_s, begun_s + trials * self.study.trial_s)
        self.leaving = True

    def view(self) -> Running:
        """Return what the policy sees."""
        study = self.study
        lead_s = study.trial_s + DRIVER_START_S
        return Running(study.id, study.owner, study.kind, self.devices, self.started_s, self.leaving, trial_s=lead_s)


class Use:
    """Sums of what owners have used: the closed formula, carried from one instant to the next."""

    def __init__(self) -> None:
        self._decayed: dict[tuple[str, str], tuple[float, float]] = {}
        self._ended: list[Interval] = []

    def add(self, interval: Interval) -> None:
        """Add a run that ended now."""
        key = (interval.owner, interval.kind)
        self._decayed[key] = (
            self.decayed(*key, interval.ended_s) + decayed_use(interval, interval.ended_s),
            interval.ended_s,
        )
        self._ended.append(interval)

    def decayed(self, owner: str, kind: str, now_s: float) -> float:
        """Return the decayed GPU-seconds of runs that ended."""
        total, at_s = self._decayed.get((owner, kind), (0.0, now_s))
        return decayed(total, now_s - at_s)

    def week(self, now_s: float) -> dict[str, float]:
        """Return the GPU-seconds of seven days of runs that ended, by owner."""
        self._ended = [each for each in self._ended if each.ended_s > now_s - WEEK_S]
        totals: dict[str, float] = defaultdict(float)
        for each in self._ended:
            totals[each.owner] += week_use(each, now_s)
        return totals


class Simulation:
    """Studies, owners and devices from time 0 on.

    Args:
        studies: the submissions.
        owners: weights and quotas.
        devices: names by kind.
    """

    def __init__(
        self, studies: Sequence[Study], owners: Sequence[Owner], devices: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._arrivals = sorted(studies, key=lambda study: (study.submitted_s, study.id), reverse=True)
        self._owners, self._devices = owners, devices
        self._without: dict[tuple[str, str], float] = {}
        self._limited = {owner.name for owner in owners if owner.most_gpus or owner.gpu_hours_a_week}
        self._quotas = any(owner.gpu_hours_a_week is not None for owner in owners)
        self._waiting: dict[str, tuple[Waiting, Study]] = {}
        self._rest_s: dict[str, float] = {}
        self._running: dict[str, Run] = {}
        self._use = Use()
        self._now_s = 0.0
        self.outcome = Outcome()

    def run(self, until_s: float) -> Outcome:
        """Simulate until a time, and return what happened until then."""
        while self._now_s < until_s:
            self._arrive()
            self._end()
            self._apply(self._decide())
            self._step(min(self._next_s(), until_s))
        for run in self._running.values():
            self._count(run, until_s)
        self.outcome.unstarted_s = {
            name: until_s - study.submitted_s
            for name, (_, study) in self._waiting.items()
            if name not in self.outcome.waits_s
        }
        return self.outcome

    def _next_s(self) -> float:
        """Return the time of the next event, at most a tick away if anything waits."""
        times = [run.ends_s for run in self._running.values()]
        times += [self._arrivals[-1].submitted_s] if self._arrivals else []
        times += [self._now_s + TICK_S] if self._waiting else []
        return max(min(times, default=math.inf), self._now_s)

    def _step(self, next_s: float) -> None:
        waiting = {(waiting.owner, waiting.kind) for waiting, _ in self._waiting.values()}
        if len(waiting) == len(self._owners) * len(self._devices):
            self.outcome.all_waiting_s += next_s - self._now_s
        having = {(run.study.owner, run.study.kind) for run in self._running.values()}
        self._without = {pair: self._without.get(pair, self._now_s) for pair in waiting - having}
        for (owner, _), since_s in self._without.items():
            if owner not in self._limited:
                self.outcome.longest_without_s = max(self.outcome.longest_without_s, next_s - since_s)
        self._now_s = next_s

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[-1].submitted_s <= self._now_s:
            study = self._arrivals.pop()
            self._rest_s[study.id] = study.work_s
            self._queue(study)

    def _queue(self, study: Study) -> None:
        lead_s = study.trial_s + DRIVER_START_S
        waiting = Waiting(
            study.id,
            study.owner,
            study.kind,
            study.gpus,
            study.submitted_s,
            self._now_s,
            study.least_gpus,
            study.priority,
            lead_s,
        )
        self._waiting[study.id] = (waiting, study)

    def _end(self) -> None:
        for name, run in list(self._running.items()):
            if run.ends_s <= self._now_s:
                del self._running[name]
                self._count(run, run.ends_s)
                if self._rest_s[name] > ROUNDING_S:
                    self._queue(run.study)
                else:
                    self.outcome.finished += 1

    def _count(self, run: Run, until_s: float) -> None:
        """Count what a run used until its end."""
        count, study, length_s = len(run.devices), run.study, until_s - run.started_s
        worked_s = max(length_s - DRIVER_START_S, 0.0)
        self._rest_s[study.id] -= count * worked_s
        self.outcome.busy_s += count * length_s
        self.outcome.start_s += count * (length_s - worked_s)
        self.outcome.use_s[study.owner] += count * length_s
        self._use.add(Interval(study.owner, study.kind, run.started_s, until_s, count * length_s))

    def _shares(self, running: Sequence[Running]) -> dict[str, OwnerShare]:
        """Return the shares by owner, and check the quotas."""
        now_s = self._now_s
        week_s = self._use.week(now_s) if self._quotas else defaultdict(float)
        use = {
            owner.name: {kind: self._use.decayed(owner.name, kind, now_s) for kind in self._devices}
            for owner in self._owners
        }
        for each in intervals_of_running(running, now_s):
            use[each.owner][each.kind] += decayed_use(each, now_s)
            week_s[each.owner] += week_use(each, now_s)
        shares = {
            owner.name: OwnerShare(
                owner.weight, use[owner.name], week_s[owner.name], owner.most_gpus, owner.gpu_hours_a_week
            )
            for owner in self._owners
        }
        self._check(shares)
        return shares

    def _check(self, shares: Mapping[str, OwnerShare]) -> None:
        held: dict[str, int] = defaultdict(int)
        for run in self._running.values():
            held[run.study.owner] += len(run.devices)
        for name, share in shares.items():
            hours = share.week_s / 3600
            self.outcome.most_week_hours[name] = max(self.outcome.most_week_hours[name], hours)
            over_devices = share.most_gpus is not None and held[name] > share.most_gpus
            over_week = share.gpu_hours_a_week is not None and hours > share.gpu_hours_a_week + ROUNDING_S
            self.outcome.violations += over_devices or over_week

    def _decide(self) -> Decisions:
        running = tuple(run.view() for run in self._running.values())
        waiting = tuple(waiting for waiting, _ in self._waiting.values())
        view = QueueView(self._now_s, waiting, running, self._shares(running), self._devices)
        begun_s = time.process_time()
        decisions = decide(view)
        self.outcome.decisions_s.append(time.process_time() - begun_s)
        self.outcome.most_waiting = max(self.outcome.most_waiting, len(waiting))
        return decisions

    def _apply(self, decisions: Decisions) -> None:
        """Start and ask as decided.

        Raises:
            ValueError: if a device is given to two studies.
        """
        for start in decisions.starts:
            _, study = self._waiting.pop(start.id)
            busy = {device for run in self._running.values() for device in run.devices}
            if busy & set(start.devices):
                raise ValueError(f"{start.id}: {sorted(busy & set(start.devices))} is busy")
            ends_s = self._now_s + DRIVER_START_S + self._rest_s[study.id] / len(start.devices)
            self._running[study.id] = Run(study, start.devices, self._now_s, ends_s)
            self.outcome.waits_s.setdefault(study.id, self._now_s - study.submitted_s)
        for name in decisions.yields:
            self._running[name].yield_at(self._now_s)
        self.outcome.yields += len(decisions.yields)
