"""The input and the output of the queue's policy. Times are seconds of one clock, such as seconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.service.queue.rules import TRIAL_S


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued submission.

    Attributes:
        id: name of the study.
        owner: who asked.
        kind: kind of the devices.
        gpus: most devices at once, 1 or more.
        created_s: when it was submitted; its age counts from here, also after a yield.
        queued_s: when it was queued last; its wait counts from here.
        least_gpus: fewest devices to start with, 1 to `gpus`.
        priority: larger is sooner, among the owner's own.
        trial_s: seconds from a request to yield until its devices are free, at most.

    Raises:
        ValueError: if `least_gpus` is not between 1 and `gpus`, or `trial_s` is not positive.
    """

    id: str
    owner: str
    kind: str
    gpus: int
    created_s: float
    queued_s: float
    least_gpus: int = 1
    priority: int = 0
    trial_s: float = TRIAL_S

    def __post_init__(self) -> None:
        if not 1 <= self.least_gpus <= self.gpus:
            raise ValueError(f"{self.id}: at least {self.least_gpus} and at most {self.gpus} devices are asked")
        if not self.trial_s > 0:
            raise ValueError(f"{self.id}: a trial of {self.trial_s} s is not longer than 0")


@dataclass(frozen=True, slots=True)
class Running:
    """A submission that has devices.

    Attributes:
        devices: names of the devices that it has.
        started_s: when it got them.
        leaving: whether it was asked to yield, stop or cancel, so that its devices come free soon.
        may_yield: whether it may be asked to yield to another owner; False while its finals run.
        trial_s: seconds from a request to yield until its devices are free, at most.
    """

    id: str
    owner: str
    kind: str
    devices: tuple[str, ...]
    started_s: float
    leaving: bool = False
    may_yield: bool = True
    trial_s: float = TRIAL_S


@dataclass(frozen=True, slots=True)
class OwnerShare:
    """An owner's weight, quotas and use until now, runs that have not ended included.

    Attributes:
        weight: share of the devices relative to others.
        use: decayed GPU-seconds by kind.
        week_s: GPU-seconds of the last seven days, of all kinds but simulated ones.
        most_gpus: quota of devices at once, of all kinds but simulated ones; None: no quota.
        gpu_hours_a_week: quota of GPU-hours in seven days; None: no quota.

    Raises:
        ValueError: if the weight is not positive.
    """

    weight: float = 1.0
    use: Mapping[str, float] = field(default_factory=dict)
    week_s: float = 0.0
    most_gpus: int | None = None
    gpu_hours_a_week: float | None = None

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"a weight of {self.weight} is not larger than 0")


@dataclass(frozen=True)
class QueueView:
    """Everything that a decision depends on.

    Attributes:
        owners: shares by name; an owner without an entry has weight 1, no quota and no use.
        devices: names of all devices by kind, busy ones included.
    """

    now_s: float
    waiting: tuple[Waiting, ...]
    running: tuple[Running, ...]
    owners: Mapping[str, OwnerShare]
    devices: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Start:
    """A submission to start, and the devices that it gets."""

    id: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Decisions:
    """The decisions of the policy.

    Attributes:
        starts: submissions to start.
        yields: running submissions to ask for their devices at the end of their trials.
        waits: why each of the other waiting submissions waits, in words for a page.
    """

    starts: tuple[Start, ...]
    yields: tuple[str, ...]
    waits: Mapping[str, str]
