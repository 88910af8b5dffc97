"""Use of devices by owner: GPU-seconds that decay exponentially, and those of the last seven days.

A second of a device at time t counts 2^(-(now - t) / h) at the time `now`, with the half-life h. The use of an
interval from a to b with n devices is the integral

    n * ∫ 2^(-(now - t) / h) dt  =  n * (h / ln 2) * 2^(-(now - b) / h) * (1 - 2^(-(b - a) / h)).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from storage.service.records import Owner, Use
from tuner.service.queue.rules import HALF_LIFE_S, SIMULATED, WEEK_S
from tuner.service.queue.view import OwnerShare, Running


@dataclass(frozen=True, slots=True)
class Interval:
    """GPU-seconds that an owner used on devices of one kind, evenly from `began_s` until `ended_s`."""

    owner: str
    kind: str
    began_s: float
    ended_s: float
    gpu_seconds: float


def decayed(gpu_seconds: float, seconds: float) -> float:
    """Return what GPU-seconds count after so many more seconds."""
    return gpu_seconds * math.exp2(-seconds / HALF_LIFE_S)


def decayed_use(interval: Interval, now_s: float) -> float:
    """Return what an interval counts at `now_s`, in GPU-seconds. What lies after `now_s` has not decayed."""
    length_s = interval.ended_s - interval.began_s
    if length_s <= 0:
        mean = 1.0
    else:
        rate = math.log(2) / HALF_LIFE_S
        mean = -math.expm1(-rate * length_s) / (rate * length_s)
    return decayed(interval.gpu_seconds * mean, max(now_s - interval.ended_s, 0.0))


def week_use(interval: Interval, now_s: float) -> float:
    """Return the GPU-seconds of an interval that lie in the seven days before `now_s`."""
    length_s = interval.ended_s - interval.began_s
    since_s = now_s - WEEK_S
    if length_s <= 0:
        return interval.gpu_seconds if interval.ended_s > since_s else 0.0
    return interval.gpu_seconds * max(interval.ended_s - max(interval.began_s, since_s), 0.0) / length_s


def intervals_of_uses(uses: Iterable[Use]) -> list[Interval]:
    """Return the intervals of stored records of runs that ended; times are seconds since 1970."""
    return [
        Interval(
            use.owner,
            use.kind,
            use.began_at.timestamp(),
            use.ended_at.timestamp(),
            use.gpu_seconds,
        )
        for use in uses
    ]


def intervals_of_running(running: Iterable[Running], now_s: float) -> list[Interval]:
    """Return the intervals of runs that have not ended, until `now_s`."""
    return [
        Interval(run.owner, run.kind, run.started_s, now_s, len(run.devices) * max(now_s - run.started_s, 0.0))
        for run in running
    ]


def owner_shares(owners: Iterable[Owner], intervals: Iterable[Interval], now_s: float) -> dict[str, OwnerShare]:
    """Return each owner's share by name; owners of intervals without a record have weight 1 and no quota."""
    use: dict[str, dict[str, float]] = {}
    week_s: dict[str, float] = {}
    for each in intervals:
        by_kind = use.setdefault(each.owner, {})
        by_kind[each.kind] = by_kind.get(each.kind, 0.0) + decayed_use(each, now_s)
        if each.kind != SIMULATED:
            week_s[each.owner] = week_s.get(each.owner, 0.0) + week_use(each, now_s)
    records = {name: Owner(name) for name in use} | {owner.name: owner for owner in owners}
    return {
        name: OwnerShare(
            owner.weight, use.get(name, {}), week_s.get(name, 0.0), owner.most_gpus, owner.gpu_hours_a_week
        )
        for name, owner in records.items()
    }
