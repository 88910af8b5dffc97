"""Decides what starts, what yields and why the others wait: a function of plain data, see docs/design/service.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tuner.service.queue.lines import make_lines
from tuner.service.queue.pool import Pool
from tuner.service.queue.quotas import Allowance, allowances, quota_yields
from tuner.service.queue.reasons import BEHIND_OWN_QUOTA, no_such_devices
from tuner.service.queue.rules import MOST_PASSED_S
from tuner.service.queue.view import Decisions, QueueView, Running, Start, Waiting


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
        pool = _pool(view, kind, waiting[kind], allowed, leaving)
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


def _pool(
    view: QueueView,
    kind: str,
    waiting: dict[str, list[Waiting]],
    allowed: dict[str, Allowance],
    leaving: Iterable[str],
) -> Pool:
    """Return the pool of one kind before its decision."""
    runs = [run for run in view.running if run.kind == kind]
    busy = {device for run in runs for device in run.devices}
    gone = set(leaving)

    def leaves(run: Running) -> bool:
        return run.leaving or run.id in gone

    coming = sum(len(run.devices) for run in runs if leaves(run))
    lines = make_lines(kind, waiting, [run for run in runs if not leaves(run)], view.owners)
    free = [device for device in view.devices[kind] if device not in busy]
    return Pool(kind, len(view.devices[kind]), free, coming, lines, allowed, view.now_s)
