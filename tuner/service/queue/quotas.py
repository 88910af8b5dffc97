"""Quotas of owners: GPUs at once, and GPU-hours in seven days. Simulated devices are no GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tuner.service.queue.reasons import hours, is_are
from tuner.service.queue.rules import SIMULATED, TRIALS_A_START
from tuner.service.queue.view import OwnerShare, QueueView, Running, Waiting


class Allowance:
    """The devices that one owner may still be granted in one decision.

    A run may use its devices for `trial_s` after it is asked to yield. That much of the week's quota is set aside for
    each run, so that the quota holds at the end of its trial, too.
    """

    def __init__(self, share: OwnerShare, running: Iterable[Running]) -> None:
        self._share = share
        runs = [run for run in running if run.kind != SIMULATED]
        self._held = sum(len(run.devices) for run in runs)
        self._set_aside_s = sum(len(run.devices) * run.trial_s for run in runs)

    def most(self, submission: Waiting) -> int:
        """Return the most devices that the submission may get now, at most `gpus`."""
        most = submission.gpus
        if submission.kind == SIMULATED:
            return most
        if self._share.most_gpus is not None:
            most = min(most, self._share.most_gpus - self._held)
        if self._share.gpu_hours_a_week is not None:
            left_s = self._share.gpu_hours_a_week * 3600 - self._share.week_s - self._set_aside_s
            most = min(most, int(left_s // start_need_s(submission)))
        return max(most, 0)

    def claim(self, submissions: Iterable[Waiting]) -> int:
        """Return how many devices these submissions could use together now."""
        fit = [each for each in submissions if self.most(each) >= each.least_gpus]
        simulated = sum(each.gpus for each in fit if each.kind == SIMULATED)
        wanted = sum(each.gpus for each in fit) - simulated
        if self._share.most_gpus is not None:
            wanted = max(min(wanted, self._share.most_gpus - self._held), 0)
        return wanted + simulated

    def grant(self, submission: Waiting, devices: int) -> None:
        """Count devices that the submission gets."""
        if submission.kind == SIMULATED:
            return
        self._held += devices
        self._set_aside_s += devices * start_need_s(submission)

    def never(self, submission: Waiting) -> str | None:
        """Return why the quotas never let the submission start; None if they do."""
        least, share = submission.least_gpus, self._share
        if submission.kind == SIMULATED:
            return None
        if share.most_gpus is not None and least > share.most_gpus:
            return f"quota of {share.most_gpus} GPUs, {least} {is_are(least)} asked"
        need_s = least * start_need_s(submission)
        if share.gpu_hours_a_week is not None and need_s > share.gpu_hours_a_week * 3600:
            quota = f"quota of {share.gpu_hours_a_week:g} GPU-hours a week"
            return f"{quota}, {TRIALS_A_START} trials need {hours(need_s)}"
        return None

    def reason(self, submission: Waiting) -> str:
        """Return why `most` is less than the submission asks."""
        share = self._share
        if share.most_gpus is not None and share.most_gpus - self._held < submission.least_gpus:
            return f"quota of {share.most_gpus} GPUs"
        quota = 0.0 if share.gpu_hours_a_week is None else share.gpu_hours_a_week
        used = f"{hours(share.week_s)} of {quota:g} GPU-hours of this week are used"
        need_s = self._set_aside_s + submission.least_gpus * start_need_s(submission)
        return used if share.week_s >= quota * 3600 else f"{used}, trials and a start need {hours(need_s)}"


def start_need_s(submission: Waiting) -> float:
    """Return the GPU-seconds of the week's quota that a start needs on each device."""
    return TRIALS_A_START * submission.trial_s


def allowances(view: QueueView) -> dict[str, Allowance]:
    """Return the allowance of each owner who waits or runs."""
    runs: dict[str, list[Running]] = defaultdict(list)
    for run in view.running:
        runs[run.owner].append(run)
    names = {*runs, *(submission.owner for submission in view.waiting)}
    return {name: Allowance(view.owners.get(name, OwnerShare()), runs[name]) for name in sorted(names)}


def quota_yields(view: QueueView) -> list[Running]:
    """Return the runs to ask because of their owner's quotas.

    All runs of an owner are asked if the week's quota would be used up at the end of their trials. Where the quota of
    devices is below what the owner has, because it was lowered, the newest runs are asked.
    """
    asked: list[Running] = []
    for name in sorted({run.owner for run in view.running}):
        share = view.owners.get(name, OwnerShare())
        runs = [run for run in view.running if run.owner == name and run.kind != SIMULATED]
        stay = sorted((run for run in runs if not run.leaving), key=lambda run: (run.started_s, run.id), reverse=True)
        if share.gpu_hours_a_week is not None:
            end_s = share.week_s + sum(len(run.devices) * run.trial_s for run in runs)
            if end_s >= share.gpu_hours_a_week * 3600:
                asked += stay
                continue
        if share.most_gpus is not None:
            over = sum(len(run.devices) for run in stay) - share.most_gpus
            for run in stay:
                if over > 0 and run.may_yield:
                    asked.append(run)
                    over -= len(run.devices)
    return asked
