"""The highest request rate that one server holds, searched with simulated runs.

A rate is held if every SLO is met and no queue grows. A finite run flatters a server near saturation in two ways, and
the length of a run and a correction answer them:

- A run lasts at least `LEAST_S`, `RESIDENCES` times as long as a request takes on an idle server, and `STAYS` times as
  long as a session with its pauses. It has at least `LEAST_REQUESTS` requests. The metrics are those of its stable
  middle.
- A server that gets r requests/s and completes m < r has a queue whose wait grows by r / m - 1 seconds a second. The
  slope b of the time to first token over the due time, by least squares, shows it also where no SLO bounds a wait. A
  rate with b above `MOST_GROWTH` is not held, and the rate that is found is divided by 1 + max(0, b), which is m.

The rate that the search finds with one seed must hold with `SEEDS` further ones; else it is lowered by `STEP`. If the
SLOs were missed in half of all runs at a rate, all five would hold with a chance of 3 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from records.trials import Repeat
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.prediction import run_workload
from tuner.scoring.goals import Goals, Slo
from tuner.study.specification.resolve_workload import has_itl_slo
from tuner.trial.capacity import CapacitySearch, RatePoint, find_capacity
from tuner.workloads.results import RequestRecord
from tuner.workloads.run_metrics import repeat_of
from tuner.workloads.traffic import Traffic

LEAST_S, RESIDENCES, LEAST_REQUESTS = 20.0, 15.0, 400
STAYS = 4.0
"""A run lasts so many sessions. The server fills during the first one; the stable middle leaves out half of it."""
SEEDS = 4
STEP = 1.03
"""Ratio of neighbouring rates at the end of the search, and the step down where another seed misses."""
MOST_GROWTH = 0.05
GROWS = "a growing queue"

_SHORT, _COARSE = 0.35, 1.1
"""Length of the runs that compare flags and find where the search begins, and the ratio at which they end."""
_OVERLOADED, _FACTOR, _NEAR = 0.1, 1.5, 1.1
"""Growth from which the slope tells the rate that is served, and factors of the first steps, rough and near the end."""
_IDLE = 0.2
"""Requests in work at a time on a nearly idle server."""
_MOST_STEPS, _MOST_LOWERED = 20, 10.0
_LIMIT = 1.5
"""A run is cut off after this multiple of its time; the requests that then still wait have missed their SLOs."""
_LAST = 10.0
"""The cut-off is later by this multiple of the mean time that a session spends in pauses, so that sessions can end."""


@dataclass(frozen=True)
class Run:
    """One run at a rate.

    Attributes:
        metrics: of the client.
        growth: seconds by which the time to first token grows in a second.
        in_flight: requests in work at a time, by Little's law; None where none was completed.
    """

    metrics: Mapping[str, float | None]
    growth: float
    in_flight: float | None = None


Runner = Callable[[Traffic, int], Run]
"""Sends traffic with a seed to a server whose caches are empty."""


@dataclass(frozen=True)
class HeldRate:
    """A rate that a server holds; `missed` is what failed at the lowest rate that was not held, `run` is one at it."""

    rate: float
    missed: tuple[str, ...]
    run: Run


@dataclass(frozen=True)
class RateSearch:
    """The search for the rate that a server holds.

    Attributes:
        run: the server.
        load: the traffic of one server.
        slos: bounds on metrics.
        residence_s: seconds of a request on the idle server.
        scale: length of the runs, relative to what it should be.
    """

    run: Runner
    load: Traffic
    slos: tuple[Slo, ...]
    residence_s: float
    scale: float = 1.0
    _done: dict[tuple[float, int, float], Run] = field(default_factory=dict)

    def in_flight(self, rate: float) -> float | None:
        """Return the requests in work at a rate, by a short run."""
        return replace(self, scale=_SHORT).at(rate).in_flight

    def rough(self, first: float) -> float | None:
        """Return about the rate that is held, by short runs with one seed; None if none is.

        An overloaded run tells the rate that is served, below which the search begins. Where a nearly idle server
        misses an SLO, no rate is tried.
        """
        short, rate = replace(self, scale=_SHORT), first
        if self.residence_s and short.missed(short.at(_IDLE / self.residence_s)):
            return None
        for _ in range(_MOST_STEPS):
            run = short.at(rate)
            if run.growth > _OVERLOADED:
                rate /= 1.0 + run.growth
                break
            if short.missed(run):
                break
            rate *= 4.0
        best = find_capacity(short.point, rate, ratio=_COARSE, factor=_FACTOR, most_steps=_MOST_STEPS).best
        return None if best is None else best.rate

    def climbed(self, rate: float) -> float | None:
        """Return about the rate that is held, if it is not below `rate`, by short runs; else None, after one run."""
        short = replace(self, scale=_SHORT)
        if short.missed(short.at(rate)):
            return None
        best = find_capacity(short.point, rate, ratio=_COARSE, factor=_FACTOR, most_steps=_MOST_STEPS).best
        return None if best is None else best.rate

    def held(self, first: float) -> HeldRate | None:
        """Return the rate that is held with every seed, searched from near it; None if none is.

        A seed with which a rate is held also holds the lower ones, to which a later seed leads.
        """
        begun = self.at(first)
        if begun.growth > _OVERLOADED:
            first /= 1.0 + begun.growth
        search = find_capacity(self.point, first, ratio=STEP, factor=_NEAR, most_steps=_MOST_STEPS)
        if search.best is None:
            return None
        rate, runs = search.best.rate, [self.at(search.best.rate)]
        for seed in range(1, SEEDS + 1):
            while self.missed(run := self.at(rate, seed)):
                rate /= STEP
                if rate < search.best.rate / _MOST_LOWERED:
                    return None
            runs.append(run)
        growth = fmean(each.growth for each in runs)
        return HeldRate(rate / (1.0 + max(0.0, growth)), _first_missed(search), runs[-1])

    def at(self, rate: float, seed: int = 0) -> Run:
        """Return a run at a rate; each runs once."""
        key = (rate, seed, self.scale)
        if key not in self._done:
            load = timed(self.load, rate, self.residence_s, self.scale)
            self._done[key] = self.run(load, self.load.seed + seed)
        return self._done[key]

    def point(self, rate: float) -> RatePoint:
        """Return a rate that was tried with the first seed."""
        done = self.at(rate)
        return RatePoint(rate, Repeat(0, self.load.seed, 0, 0, 0, None, dict(done.metrics)), self.missed(done))

    def missed(self, run: Run) -> tuple[str, ...]:
        """Return the SLOs that a run missed, and whether its queue grew."""
        slos = [str(slo) for slo in self.slos if not slo.met(run.metrics.get(slo.metric))]
        return (*slos, *((GROWS,) if run.growth > MOST_GROWTH else ()))


def timed(load: Traffic, rate: float, residence_s: float, scale: float = 1.0) -> Traffic:
    """Return traffic at a rate, as long as a run must be; see the module's docstring."""
    stay_s = STAYS * load.residence_s(residence_s)
    seconds = scale * max(LEAST_S, RESIDENCES * residence_s, stay_s, LEAST_REQUESTS / rate)
    return load.at_rate(rate).model_copy(update={"requests": None, "duration_s": seconds})


def _first_missed(search: CapacitySearch) -> tuple[str, ...]:
    """Return what was missed at the lowest rate that was not held; nothing where all were."""
    missed = [point for point in search.points if not point.held]
    return min(missed, key=lambda each: each.rate).missed if missed else ()


def simulated_runner(server: ConfiguredServer, slos: Sequence[Slo]) -> Runner:
    """Return runs on a simulated server, without gaps between tokens where no SLO is on them: they take longest."""

    def run(load: Traffic, seed: int) -> Run:
        assert load.duration_s is not None
        done = run_workload(server, load, seed, _LIMIT * load.duration_s + _LAST * load.residence_s(0.0))
        records = done.records()
        if not has_itl_slo(Goals((), tuple(slos), ()), load):
            records = [replace(each, gaps_s=()) for each in records]
        waits = [
            (each.due_s, each.first_token_s - each.due_s)
            for each in records
            if each.due_s is not None and each.due_s < load.duration_s and each.first_token_s is not None
        ]
        return Run(repeat_of(load, records, 0).metrics, growth(sorted(waits)), _in_flight(records, load.duration_s))

    return run


def growth(waits: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the waits of served requests over their due times, in the order in which they are due.

    The first quarter, in which a server fills, does not count. Where fewer than four were served, it is 1.
    """
    kept = np.asarray(waits[len(waits) // 4 :])
    if len(waits) < 4 or kept[0][0] == kept[-1][0]:
        return 1.0
    return float(np.polyfit(kept[:, 0], kept[:, 1], 1)[0])


def _in_flight(records: Sequence[RequestRecord], seconds: float) -> float | None:
    spans = [each.end_s - each.due_s for each in records if each.end_s is not None and each.due_s is not None]
    return sum(spans) / seconds if spans else None
