"""The scheduler: each step finds lost drivers, reads the queue, decides, and starts submissions."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from storage.errors import StorageError
from storage.service.errors import UnknownSubmission, WrongState
from storage.service.records import ACTIVE, Lease, Request, Submission, SubmissionState
from storage.service.store import ServiceStore
from tuner.errors import UserError
from tuner.service.asked.settings import read_settings
from tuner.service.queue.policy import decide
from tuner.service.queue.rules import WEEK_S, WITHOUT_GPU
from tuner.service.queue.shares import intervals_of_running, intervals_of_uses, owner_shares
from tuner.service.queue.view import Decisions, QueueView, Running, Waiting
from tuner.service.scheduler.launcher import Launcher, kill_driver
from tuner.settings.fleet import SizeSettings
from tuner.study.specification.plan import gpus_of_trial

LEASE = "scheduler"
LEASE_S = 15.0
"""Validity of a lease in seconds. If a scheduler dies, nothing is scheduled for this long."""

FORGET_EVERY = timedelta(hours=1)
MOST_FORGOTTEN = 1000
"""Old lines of the audit log that one step deletes at most; a longer deletion would block other writers."""

STEP_S = 1.0
"""Seconds between two steps."""

SILENT_S = 60.0
"""Seconds without a heartbeat after which a driver counts as lost; one comes every 2 s."""

START_S = 120.0
"""Seconds that a started process has to set itself as the driver."""

MOST_LOSSES = 6
"""Lost drivers in a row, without a finished trial, after which a study is not started again: it may crash its host.

One or two are not enough: an administrator, or a host that restarts, may kill several drivers while they start."""


@dataclass
class QueueState:
    """What the last step found, for pages: why submissions wait, and whether this process schedules."""

    waits: Mapping[str, str] = field(default_factory=dict)
    leads: bool = False


def step_while_leading(
    step: Callable[[], None],
    state: QueueState,
    stop: threading.Event,
    note: Callable[[str, str | None], None],
    failed: str,
) -> None:
    """Step until `stop` is set, while this process schedules, so that one process at a time does.

    A failure of the database ends one step only; `note` gets a line that begins with `failed`, what is not done then.
    """
    while not stop.wait(STEP_S):
        try:
            if state.leads:
                step()
        except StorageError as error:
            note(f"{failed}: {error}", None)


class Scheduler:
    """Schedules while it holds the lease.

    `note` gets a line about each fault, and the submission's id; None: the fault concerns all submissions. `state` is
    updated by each step, for pages.
    """

    def __init__(
        self,
        store: ServiceStore,
        launcher: Launcher,
        devices: Mapping[str, Sequence[str]],
        note: Callable[[str, str | None], None],
        keep_audit: timedelta,
        state: QueueState | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store, self._launcher, self._now, self._note = store, launcher, now, note
        self._devices = {kind: tuple(names) for kind, names in devices.items()}
        self._keep_audit = keep_audit
        self._forget_at: datetime | None = None
        self._ended_runs: set[tuple[str, int]] = set()
        self._least_gpus_of: dict[tuple[str, datetime], int] = {}
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.state = QueueState() if state is None else state

    def run(self, stop: threading.Event) -> None:
        """Step until `stop` is set, then give the lease up."""
        lease = None
        while not stop.is_set():
            try:
                lease = self.step()
            except StorageError as error:
                self._note(f"nothing was scheduled: {error}", None)
            stop.wait(STEP_S)
        if lease is not None:
            with suppress(StorageError):
                self._store.release_lease(lease)

    def step(self) -> Lease | None:
        """Take or renew the lease and schedule once; None if another process schedules."""
        now = self._now()
        self._ended_runs |= self._launcher.reap()
        lease = self._store.take_lease(LEASE, self._holder, LEASE_S, now)
        self.state.leads = lease is not None
        if lease is None:
            return None
        submissions = [self._with_loss(each, lease) for each in self._store.active_and_queued()]
        self._ended_runs.clear()
        decisions = self._decide(submissions, now)
        self.state.waits = decisions.waits
        for id in decisions.yields:
            with suppress(WrongState, UnknownSubmission):
                self._store.request(id, Request.YIELD, now)
        for start in decisions.starts:
            self._start(start.id, start.devices, lease)
        self._forget(now)
        return lease

    def _forget(self, now: datetime) -> None:
        """Delete old lines of the audit log, now and then."""
        if self._forget_at is None or now >= self._forget_at:
            count = self._store.forget_audit(now - self._keep_audit, MOST_FORGOTTEN)
            self._forget_at = now if count == MOST_FORGOTTEN else now + FORGET_EVERY

    def _start(self, id: str, devices: Sequence[str], lease: Lease) -> None:
        if not self._store.start(id, devices, lease, self._now()):
            return
        submission = self._store.submission(id)
        if submission is None or submission.state not in ACTIVE:
            return
        try:
            self._launcher.launch(submission)
        except OSError as error:
            self._note(f"no driver for {id} can be started: {error}", id)
            self._store.lost(id, None, lease, self._now(), MOST_LOSSES)

    def _with_loss(self, submission: Submission, lease: Lease) -> Submission:
        """Return a submission as the database has it, after the loss of its driver, if it is lost, was recorded."""
        if submission.state not in ACTIVE or not self._is_lost(submission):
            return submission
        self._note(f"the driver of {submission.id} is lost", submission.id)
        found = self._store.lost(submission.id, submission.driver, lease, self._now(), MOST_LOSSES)
        if submission.driver is None and found.state not in ACTIVE:
            self._launcher.abandon(submission.id, submission.runs)
        return found

    def _is_lost(self, submission: Submission) -> bool:
        """Return whether the driver has ended, or has been silent for too long."""
        now, driver = self._now(), submission.driver
        if driver is None and (submission.id, submission.runs) in self._ended_runs:
            return True
        if driver is None:
            if submission.request is Request.CANCEL and self._launcher.abandon(submission.id, submission.runs):
                return True
            began = submission.run_began_at or submission.queued_at
            return now - began > timedelta(seconds=START_S)
        is_running = self._launcher.is_running(driver)
        if is_running is False:
            return True
        silent = submission.heartbeat_at is None or now - submission.heartbeat_at > timedelta(seconds=SILENT_S)
        if is_running and silent:
            return kill_driver(driver)  # a hung driver must not resume beside its successor
        return silent and is_running is None

    def _decide(self, submissions: Sequence[Submission], now: datetime) -> Decisions:
        now_s = now.timestamp()
        running = tuple(_running(each) for each in submissions if each.state in ACTIVE and each.granted)
        queued = [each for each in submissions if each.state is SubmissionState.QUEUED]
        known, self._least_gpus_of = self._least_gpus_of, {}
        for each in queued:
            key = each.id, each.created_at
            self._least_gpus_of[key] = known.get(key) or self._least_gpus(each)
        waiting = tuple(_waiting(each, self._least_gpus_of[each.id, each.created_at]) for each in queued)
        uses = self._store.uses(now - timedelta(seconds=WEEK_S))
        intervals = [*intervals_of_uses(uses), *intervals_of_running(running, now_s)]
        shares = owner_shares(self._store.owners(), intervals, now_s)
        return decide(QueueView(now_s, waiting, running, shares, self._devices))

    def _least_gpus(self, submission: Submission) -> int:
        """Return the number of GPUs that one trial needs; 1 for unreadable settings, which the driver reports.

        Servers for a load are measured on all GPUs that are asked for, because the shape that is tried may need them.
        """
        found = self._store.submission(submission.id)
        if submission.kind in WITHOUT_GPU or found is None:
            return 1
        with suppress(UserError):
            settings = read_settings(found.settings)
            sized = isinstance(settings, SizeSettings)
            return submission.gpus if sized else min(gpus_of_trial(settings), submission.gpus)
        return 1


def _waiting(submission: Submission, least_gpus: int) -> Waiting:
    return Waiting(
        submission.id,
        submission.owner,
        submission.kind,
        submission.gpus,
        submission.created_at.timestamp(),
        submission.queued_at.timestamp(),
        least_gpus,
        submission.priority,
    )


def _running(submission: Submission) -> Running:
    return Running(
        submission.id,
        submission.owner,
        submission.kind,
        submission.granted,
        (submission.run_began_at or submission.queued_at).timestamp(),
        leaving=submission.request is not None,
        may_yield=submission.state is SubmissionState.RUNNING,
    )
