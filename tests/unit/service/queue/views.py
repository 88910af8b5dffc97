"""Views written in few words. The time is `NOW_S`; a submission waits for a minute unless said otherwise."""

from collections.abc import Mapping, Sequence

from tuner.service.queue.view import OwnerShare, QueueView, Running, Waiting

NOW_S = 1_000_000.0
MINUTE_S, HOUR_S = 60.0, 3600.0


def devices(count: int, kind: str = "h200") -> tuple[str, ...]:
    """Return names of devices, such as `h200-0`."""
    return tuple(f"{kind}-{number}" for number in range(count))


def waits(
    name: str,
    gpus: int = 1,
    least: int = 1,
    *,
    age_s: float = MINUTE_S,
    queued_for_s: float | None = None,
    priority: int = 0,
    kind: str = "h200",
    trial_s: float = 600.0,
) -> Waiting:
    """Return a waiting submission whose owner is the part of the name before `-`."""
    queued_s = NOW_S - (age_s if queued_for_s is None else queued_for_s)
    return Waiting(name, name.split("-")[0], kind, gpus, NOW_S - age_s, queued_s, least, priority, trial_s)


def runs(
    name: str,
    numbers: Sequence[int],
    *,
    for_s: float = HOUR_S,
    leaving: bool = False,
    may_yield: bool = True,
    kind: str = "h200",
    trial_s: float = 600.0,
) -> Running:
    """Return a submission that has run `for_s` seconds on the devices with these numbers."""
    names = tuple(f"{kind}-{number}" for number in numbers)
    return Running(name, name.split("-")[0], kind, names, NOW_S - for_s, leaving, may_yield, trial_s)


def used(gpu_hours: float, weight: float = 1.0, kind: str = "h200") -> OwnerShare:
    """Return an owner with a decayed use of one kind and no quota."""
    return OwnerShare(weight, {kind: gpu_hours * HOUR_S})


def view(
    waiting: Sequence[Waiting],
    running: Sequence[Running] = (),
    owners: Mapping[str, OwnerShare] | None = None,
    count: int = 4,
    others: Mapping[str, tuple[str, ...]] | None = None,
) -> QueueView:
    """Return a view with `count` devices of kind `h200`, and others by kind."""
    return QueueView(NOW_S, tuple(waiting), tuple(running), owners or {}, {"h200": devices(count), **(others or {})})
