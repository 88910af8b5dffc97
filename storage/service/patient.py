"""The service's store of a program that waits: its operations are repeated while the database does not answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Engine

from storage.errors import StorageError
from storage.service.errors import NotYours, TokenExists, UnknownSubmission, WrongState
from storage.service.records import Lease, Submission, Token
from storage.service.store import ServiceStore
from storage.tables.mapping import to_json_value
from storage.waiting import DatabaseWait

P = ParamSpec("P")
T = TypeVar("T")

SEARCHED_EVENTS = 1000
"""Newest events among which one is looked for whose commit was not acknowledged."""


def _repeated(method: Callable[Concatenate[ServiceStore, P], T]) -> Callable[Concatenate[ServiceStore, P], T]:
    """Return a method that is repeated. A second time, the method changes nothing that the first one has changed."""

    @wraps(method)
    def waiting(self: ServiceStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait.run(lambda _: method(self, *args, **kwargs))

    return waiting


def _found_again(
    method: Callable[Concatenate[ServiceStore, P], Submission], refusal: type[StorageError], *times: str
) -> Callable[Concatenate[ServiceStore, P], Submission]:
    """Return a change of a submission that is repeated.

    Args:
        method: the change, of the submission `id` at the time `now`.
        refusal: raised by a second change, because of the first one.
        times: attributes of the submission of which the change sets one to `now`.
    """
    signature = inspect.signature(method)

    @wraps(method)
    def waiting(self: ServiceStore, /, *args: P.args, **kwargs: P.kwargs) -> Submission:
        given = signature.bind(self, *args, **kwargs).arguments

        def once(again: bool) -> Submission:
            try:
                return method(self, *args, **kwargs)
            except refusal:
                stored = ServiceStore.submission(self, given["id"]) if again else None
                if stored is not None and given["now"] in [getattr(stored, name) for name in times]:
                    return stored
                raise

        return self.wait.run(once)

    return waiting


class PatientServiceStore(ServiceStore):
    """A `ServiceStore` that waits, see `DatabaseWait`.

    A commit may succeed although its acknowledgement is lost. A repeated write that finds its own change returns what
    the first try would have returned. Only an audit entry may be stored twice then.
    """

    def __init__(self, engine: Engine, wait: DatabaseWait) -> None:
        super().__init__(engine)
        self.wait = wait

    submission = _repeated(ServiceStore.submission)
    submissions = _repeated(ServiceStore.submissions)
    readable_of = _repeated(ServiceStore.readable_of)
    counts = _repeated(ServiceStore.counts)
    share = _repeated(ServiceStore.share)
    set_priority = _repeated(ServiceStore.set_priority)
    active_and_queued = _repeated(ServiceStore.active_and_queued)
    take_lease = _repeated(ServiceStore.take_lease)
    release_lease = _repeated(ServiceStore.release_lease)
    set_driver = _repeated(ServiceStore.set_driver)
    lost = _repeated(ServiceStore.lost)
    uses = _repeated(ServiceStore.uses)
    beat = _repeated(ServiceStore.beat)
    concluding = _repeated(ServiceStore.concluding)
    measured_all = _repeated(ServiceStore.measured_all)
    progressed = _repeated(ServiceStore.progressed)
    events_after = _repeated(ServiceStore.events_after)
    new_events = _repeated(ServiceStore.new_events)
    owners = _repeated(ServiceStore.owners)
    set_owner = _repeated(ServiceStore.set_owner)
    token = _repeated(ServiceStore.token)
    tokens_of = _repeated(ServiceStore.tokens_of)
    tokens = _repeated(ServiceStore.tokens)
    revoke_token = _repeated(ServiceStore.revoke_token)
    touch_token = _repeated(ServiceStore.touch_token)
    audit = _repeated(ServiceStore.audit)
    forget_audit = _repeated(ServiceStore.forget_audit)
    audit_log = _repeated(ServiceStore.audit_log)
    figures = _repeated(ServiceStore.figures)
    due_messages = _repeated(ServiceStore.due_messages)
    postpone_message = _repeated(ServiceStore.postpone_message)
    drop_message = _repeated(ServiceStore.drop_message)
    request = _found_again(ServiceStore.request, WrongState, "ended_at")
    resume = _found_again(ServiceStore.resume, WrongState, "queued_at")
    end = _found_again(ServiceStore.end, NotYours, "ended_at", "queued_at")

    def submit(self, submission: Submission, most_waiting: int | None = None) -> tuple[Submission, bool]:
        """Store a submission, see `SubmissionStore`."""
        submit = super().submit

        def once(again: bool) -> tuple[Submission, bool]:
            stored, created = submit(submission, most_waiting)
            return stored, created or (again and stored.created_at == submission.created_at)

        return self.wait.run(once)

    def delete(self, id: str, with_study: bool = False) -> None:
        """Delete a submission, see `SubmissionStore`."""
        change = super().delete

        def once(again: bool) -> None:
            try:
                change(id, with_study)
            except UnknownSubmission:
                if not again:
                    raise

        self.wait.run(once)

    def start(self, id: str, granted: Sequence[str], lease: Lease, now: datetime) -> bool:
        """Start a submission, see `SchedulingStore`."""
        change, read = super().start, super().submission

        def once(again: bool) -> bool:
            if change(id, granted, lease, now):
                return True
            stored = read(id) if again else None
            return stored is not None and (stored.run_began_at, stored.granted) == (now, tuple(granted))

        return self.wait.run(once)

    def event(self, id: str, kind: str, data: Mapping[str, Any], now: datetime) -> int:
        """Add an event, see `DrivingStore`."""
        change, read, events_after = super().event, super().submission, super().events_after

        def stored() -> int | None:
            submission = read(id)
            first = 0 if submission is None else max(0, submission.events - SEARCHED_EVENTS)
            wanted = (now, kind, to_json_value("data", data))
            found = events_after(id, first, SEARCHED_EVENTS)
            return next((each.number for each in found if (each.at, each.kind, each.data) == wanted), None)

        def once(again: bool) -> int:
            number = stored() if again else None
            return change(id, kind, data, now) if number is None else number

        return self.wait.run(once)

    def add_token(self, token: Token) -> None:
        """Store a token, see `AccessStore`."""
        change, read = super().add_token, super().token

        def once(again: bool) -> None:
            try:
                change(token)
            except TokenExists:
                if not (again and read(token.digest) == token):
                    raise

        self.wait.run(once)
