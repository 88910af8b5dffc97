"""The part of the service's store for schedulers: the lease, starts, lost drivers, and what was used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from storage.columns import KEYWORD_LENGTH, check_name, record_of
from storage.errors import StorageError
from storage.service.errors import NotYours
from storage.service.records import ACTIVE, Driver, Lease, Request, Submission, SubmissionState, Use
from storage.service.rows import (
    end_run,
    find_locked,
    is_active,
    locked,
    move,
    submission_record,
)
from storage.tables import USES, LeaseRow, SubmissionRow
from storage.transactions import Transactions, insert_into, is_repeated, reading, writing

CONSIDERED = tuple(state.value for state in (*sorted(ACTIVE), SubmissionState.QUEUED))


class SchedulingStore(Transactions):
    """What a scheduler reads and decides.

    A decision locks the lease, then the submission. A scheduler whose lease has expired or has another holder changes
    nothing, also if it has not noticed: the term, not the clock, tells it from its successor.
    """

    @reading
    def active_and_queued(self, session: Session) -> list[Submission]:
        """Return the submissions that have devices or wait, the oldest first, with empty settings."""
        query = select(SubmissionRow).where(SubmissionRow.state.in_(CONSIDERED))
        query = query.order_by(SubmissionRow.created_at, SubmissionRow.id)
        return [submission_record(row, with_settings=False) for row in session.scalars(query)]

    @writing
    def take_lease(self, session: Session, name: str, holder: str, seconds: float, now: datetime) -> Lease | None:
        """Take or renew a lease until `seconds` after `now`.

        Args:
            name: what is leased.
            holder: the process; no two processes have the same name.
            seconds: how long the lease is valid without another renewal.
            now: the present time. Hosts whose clocks differ by more than `seconds` take the lease from each other.

        Returns:
            The lease; None if another holder has it. A renewal, also a late one that nobody forestalled, has the term
            of before; a new holder's term is larger than every earlier one.
        """
        check_name("a lease's name", name, KEYWORD_LENGTH)
        expires_at = now + timedelta(seconds=seconds)
        free = {"name": name, "holder": "", "term": 0, "expires_at": None}
        session.execute(insert_into(session, LeaseRow).values(free).on_conflict_do_nothing())
        row = session.scalars(select(LeaseRow).where(LeaseRow.name == name).with_for_update()).one()
        if row.expires_at is None or row.holder != holder:
            if row.expires_at is not None and row.expires_at > now:
                return None
            row.holder, row.term = holder, row.term + 1
        row.expires_at = expires_at
        return Lease(name, holder, row.term, expires_at)

    @writing
    def release_lease(self, session: Session, lease: Lease) -> None:
        """Give a lease up, so that another holder can take it at once; nothing happens if it is another's by now."""
        row = _lease_row(session, lease)
        if row is not None:
            row.expires_at = None

    @writing
    def start(self, session: Session, id: str, granted: Sequence[str], lease: Lease, now: datetime) -> bool:
        """Give a queued submission its devices; the event is `started` with the devices and the number of the run.

        It is RUNNING from then on, or STOPPING if it waited for a driver that concludes it.

        Args:
            id: the submission.
            granted: names of the devices, one for each worker.
            lease: the scheduler's.
            now: when the run begins.

        Returns:
            False, without a change, if the lease is not valid any more, or the submission is not queued or was deleted.

        Raises:
            StorageError: if no device is granted.
        """
        if not granted:
            raise StorageError(f"the submission {id!r} cannot start without a device; grant at least one")
        is_valid, row = _is_valid(session, lease, now), find_locked(session, id)
        if row is None:
            return False
        if is_repeated(session) and (row.run_began_at, row.granted) == (now, list(granted)):
            return True
        if not is_valid or row.state != SubmissionState.QUEUED:
            return False
        row.granted, row.runs = list(granted), row.runs + 1
        row.run_began_at = row.counted_at = now
        row.started_at, row.heartbeat_at = row.started_at or now, None
        stopping = row.request == Request.STOP
        state = SubmissionState.STOPPING if stopping else SubmissionState.RUNNING
        move(session, row, state, "started", now, data={"granted": list(granted), "run": row.runs})
        return True

    @writing
    def set_driver(
        self, session: Session, id: str, driver: Driver, now: datetime, run: int | None = None
    ) -> Submission:
        """Set the driver of an active submission that has none; the same driver may be set again.

        Args:
            id: the submission.
            driver: the process.
            now: its first heartbeat.
            run: the run that it was started for (`Submission.runs`), so that the driver of an earlier run does not
                take the present one; None: any.

        Raises:
            NotYours: if it is not active, has another driver, or the run is over.
            UnknownSubmission: if there is none of that id.
        """
        row = locked(session, id)
        if not is_active(row) or row.driver not in (None, driver) or run not in (None, row.runs):
            present = f"{row.state} in run {row.runs}"
            raise NotYours(f"the submission {id!r} is {present} and does not wait for this driver; it ends")
        row.driver = driver
        row.heartbeat_at = now
        return submission_record(row)

    @writing
    def lost(
        self, session: Session, id: str, driver: Driver | None, lease: Lease, now: datetime, most_losses: int
    ) -> Submission:
        """Take the devices from an active submission whose driver is gone; the event is `lost`.

        It is queued again with one more loss, and a request to stop is kept, so that its next driver concludes it. If
        it was to be cancelled it is CANCELLED; at `most_losses` it is FAILED with the infrastructure as culprit.

        Args:
            id: the submission.
            driver: who is gone; None: it never had one.
            lease: the scheduler's.
            now: until when its use counts.
            most_losses: the loss that is the last one.

        Returns:
            The submission as it is now: unchanged if the lease is not valid any more, or it is not active or has
            another driver.

        Raises:
            UnknownSubmission: if there is none of that id.
        """
        valid = _is_valid(session, lease, now)
        row = locked(session, id)
        if valid and is_active(row) and row.driver == driver:
            end_run(session, row, now)
            _after_loss(session, row, driver, now, most_losses)
        return submission_record(row)

    @reading
    def uses(self, session: Session, since: datetime) -> list[Use]:
        """Return the uses that ended at that time or later, by their end. Runs that have not ended are not in it."""
        query = select(USES).where(USES.c.ended_at >= since).order_by(USES.c.ended_at, USES.c.id)
        return [record_of(Use, row) for row in session.execute(query)]


def _lease_row(session: Session, lease: Lease) -> LeaseRow | None:
    """Return the locked row of a lease; None if it is another's by now."""
    row = session.scalar(select(LeaseRow).where(LeaseRow.name == lease.name).with_for_update())
    return row if row is not None and (row.holder, row.term) == (lease.holder, lease.term) else None


def _is_valid(session: Session, lease: Lease, now: datetime) -> bool:
    """Lock a lease until the transaction ends, and return whether it is this one and has not expired."""
    row = _lease_row(session, lease)
    return row is not None and row.expires_at is not None and row.expires_at > now


def _after_loss(session: Session, row: SubmissionRow, driver: Driver | None, now: datetime, most_losses: int) -> None:
    """Queue or end a submission that has lost its driver."""
    row.losses += 1
    lost = "its driver was lost before it started" if driver is None else f"its driver was lost on {driver.host}"
    about = {"losses": row.losses, "host": None if driver is None else driver.host}
    if row.request == Request.CANCEL:
        move(session, row, SubmissionState.CANCELLED, "lost", now, f"ended on request; {lost}", data=about)
    elif row.losses >= most_losses:
        reason = f"{row.losses} drivers were lost without a new trial in between; the last time {lost}"
        move(session, row, SubmissionState.FAILED, "lost", now, reason, "infrastructure", about)
    else:
        row.request = row.request if row.request == Request.STOP else None
        move(session, row, SubmissionState.QUEUED, "lost", now, lost, data=about)
