"""The part of the service's store for runs: the scheduler's lease, starts, drivers with their heartbeats, and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from storage.columns import record_of, to_json_value
from storage.service.errors import NotYours
from storage.service.records import CONSIDERED, Driver, Lease, Request, Submission, SubmissionState, Use
from storage.service.rows import (
    add_event,
    count_use,
    end_run,
    find_locked,
    is_active,
    locked,
    move,
    owned,
    submission_record,
    take_devices,
)
from storage.tables import USES, EventRow, LeaseRow, SubmissionRow
from storage.transactions import Transactions, insert_into, is_repeated, reading, writing


class RunStore(Transactions):
    """What a scheduler reads and decides, and what a driver writes.

    A decision locks the lease, then the submission. A scheduler whose lease has expired or has another holder changes
    nothing, also if it has not noticed: the term, not the clock, tells it from its successor.

    Methods that have the driver as an argument change nothing for another one.

    Raises:
        NotYours: by the methods of a driver, if the submission has another driver or none: the driver ends and writes
            nothing more.
        UnknownSubmission: by the others that change a submission, if there is none of that id.
    """

    @reading
    def active_and_queued(self, session: Session) -> list[Submission]:
        """Return the submissions that have devices or wait, the oldest first, with empty settings."""
        query = select(SubmissionRow).where(SubmissionRow.state.in_([state.value for state in CONSIDERED]))
        query = query.order_by(SubmissionRow.created_at, SubmissionRow.id)
        return [submission_record(row, with_settings=False) for row in session.scalars(query)]

    @writing
    def take_lease(self, session: Session, name: str, holder: str, seconds: float, now: datetime) -> Lease | None:
        """Take or renew a lease until `seconds` after `now`.

        Each process has a name of its own as `holder`. Hosts whose clocks differ by more than `seconds` take the lease
        from each other.

        Returns:
            The lease; None if another holder has it. A renewal, also a late one that nobody forestalled, has the term
            of before; a new holder's term is larger than every earlier one.
        """
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

        Returns:
            False, without a change, if the lease is not valid any more, or the submission is not queued or was deleted.
        """
        is_valid, row = _is_valid(session, lease, now), find_locked(session, id)
        if row is None or not is_valid or row.state != SubmissionState.QUEUED:
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

        `run` is the one that it was started for (`Submission.runs`), so that the driver of an earlier run does not take
        the present one; None: any.

        Raises:
            NotYours: if it is not active, has another driver, or the run is over.
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
        it was to be cancelled it is CANCELLED; at `most_losses` it is FAILED with the infrastructure as culprit. Its
        use counts until `now`. A `driver` of None: it never had one.

        Returns:
            The submission as it is now: unchanged if the lease is not valid any more, or it is not active or has
            another driver.
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

    @writing
    def beat(self, session: Session, id: str, driver: Driver, now: datetime) -> Request | None:
        """Store a heartbeat and the devices used until now, and return what the driver is asked to do."""
        row = owned(session, id, driver)
        count_use(row, now)
        row.heartbeat_at = now
        return None if row.request is None else Request(row.request)

    @writing
    def event(self, session: Session, id: str, kind: str, data: Mapping[str, Any], now: datetime) -> int:
        """Add an event and return its number: one more than the last event's of this submission.

        The submission's row is locked from the number until the commit. Events of one submission therefore become
        visible in the order of their numbers, and a number that was returned or read has all smaller ones before it.

        Raises:
            StorageError: if the data are not JSON.
        """
        row = locked(session, id)
        if is_repeated(session):
            same = (EventRow.submission_id == row.id, EventRow.at == now, EventRow.kind == kind)
            for stored in session.scalars(select(EventRow).where(*same)):
                if stored.data == to_json_value("data", data):
                    return stored.number
        return add_event(session, row, kind, data, now)

    @writing
    def concluding(self, session: Session, id: str, driver: Driver, now: datetime) -> Submission:
        """Say that the search is over: a running submission is CONCLUDING, a STOPPING one stays so."""
        row = owned(session, id, driver)
        if row.state == SubmissionState.RUNNING:
            move(session, row, SubmissionState.CONCLUDING, "concluding", now)
        return submission_record(row)

    @writing
    def measured_all(self, session: Session, id: str, driver: Driver, now: datetime) -> Submission:
        """Take the devices back from a run that measures nothing more; its driver goes on, and the event says so."""
        row = owned(session, id, driver)
        if row.granted:
            add_event(session, row, "measured", {"state": row.state}, now)
        take_devices(session, row, now)
        return submission_record(row)

    @writing
    def set_answer(self, session: Session, id: str, driver: Driver, answer: Mapping[str, Any]) -> None:
        """Store what a study found that has no trials; `ServiceStore.answer` returns it.

        Raises:
            StorageError: if it is not JSON.
        """
        owned(session, id, driver).answer = to_json_value("answer", answer)

    @writing
    def end(
        self,
        session: Session,
        id: str,
        driver: Driver,
        state: SubmissionState,
        reason: str | None,
        culprit: str | None,
        now: datetime,
    ) -> Submission:
        """End the driver's run and record its use; the event has the state's name in lower case.

        A driver that yields leaves its submission QUEUED. If a person asked for its end meanwhile, that is not lost: to
        be cancelled, it is CANCELLED; to be stopped, it is queued with that request, for a driver that concludes it.
        Its use counts until `now`.
        """
        left = find_locked(session, id) if is_repeated(session) else None
        if left is not None and left.driver != driver and now in (left.ended_at, left.queued_at):
            return submission_record(left)
        row = owned(session, id, driver)
        end_run(session, row, now)
        if state is SubmissionState.QUEUED:
            if row.request == Request.CANCEL:
                state, reason = SubmissionState.CANCELLED, "ended on request while it gave its devices back"
            elif row.request == Request.YIELD:
                row.request = None
        move(session, row, state, state.value.lower(), now, reason, culprit)
        return submission_record(row)

    @writing
    def progressed(self, session: Session, id: str) -> None:
        """Say that a trial has finished: earlier losses of drivers count no more."""
        change = update(SubmissionRow).where(SubmissionRow.name == id, SubmissionRow.losses != 0).values(losses=0)
        session.execute(change)


def _lease_row(session: Session, lease: Lease) -> LeaseRow | None:
    """Return the locked row of a lease; None if it is another's by now."""
    row = session.scalar(select(LeaseRow).where(LeaseRow.name == lease.name).with_for_update())
    return row if row is not None and (row.holder, row.term) == (lease.holder, lease.term) else None


def _is_valid(session: Session, lease: Lease, now: datetime) -> bool:
    """Lock a lease until the transaction ends, and return whether it is this one and has not expired."""
    row = _lease_row(session, lease)
    return row is not None and row.expires_at is not None and row.expires_at > now


def _after_loss(session: Session, row: SubmissionRow, driver: Driver | None, now: datetime, most_losses: int) -> None:
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
