"""New events on PostgreSQL, where a row may be committed after rows with larger numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from storage.service.records import EventPosition, SubmissionState
from storage.service.rows import add_event, locked
from storage.service.store import ServiceStore, open_service_store
from tests.contracts.service_events_contract import numbers, read_on, start_reading
from tests.postgres import PostgresServer
from tests.service_samples import DRIVER, START, run, submission


class OpenWriter:
    """A transaction that has added an event and is not committed; what `ServiceStore.event` does until its commit."""

    present: ClassVar[list[OpenWriter]] = []

    def __init__(self, store: ServiceStore, id: str) -> None:
        self._session = Session(store._writer)
        self.present.append(self)
        self.id = id
        self.number = add_event(self._session, locked(self._session, id), "trial", {}, START)
        self._session.flush()

    def commit(self) -> None:
        self._session.commit()
        self._session.close()

    def roll_back(self) -> None:
        """Take the event back."""
        self._session.rollback()
        self._session.close()


@pytest.fixture
def store(empty_database: str) -> Iterator[ServiceStore]:
    """A store with the submissions `a`, `b` and `c`; what a test leaves open is rolled back."""
    store = open_service_store(empty_database)
    for id in "abc":
        store.submit(submission(id))
    yield store
    while OpenWriter.present:
        OpenWriter.present.pop().roll_back()
    store.close()


def test_an_event_that_is_committed_late_is_not_missed(store: ServiceStore) -> None:
    position = start_reading(store)
    late = OpenWriter(store, "a")
    store.event("b", "trial", {}, START)
    found, position = read_on(store, position)
    assert found == [("b", 2)]
    assert read_on(store, position)[0] == []
    late.commit()
    found, position = read_on(store, position)
    assert found == [("a", 2)]
    assert position == EventPosition(5)
    assert read_on(store, position)[0] == []


def test_an_event_that_is_taken_back_is_not_waited_for(store: ServiceStore) -> None:
    position = start_reading(store)
    late = OpenWriter(store, "a")
    store.event("b", "trial", {}, START)
    _, position = read_on(store, position)
    assert (position.complete, position.seen) == (3, frozenset({5}))
    late.roll_back()
    found, position = read_on(store, position)
    assert (found, position) == ([], EventPosition(5))
    store.event("a", "trial", {}, START)
    assert read_on(store, position)[0] == [("a", 2)]


def test_a_new_reader_does_not_miss_what_is_committed_after_its_start(store: ServiceStore) -> None:
    late = OpenWriter(store, "a")
    store.event("b", "trial", {}, START)
    position = start_reading(store)
    assert numbers(store.events_after("a", 0)) == {"a": [1]}
    late.commit()
    found, position = read_on(store, position)
    assert (found, position) == ([("a", 2)], EventPosition(5))


def test_a_long_transaction_of_another_program_delays_no_event(store: ServiceStore, postgres: PostgresServer) -> None:
    position = start_reading(store)
    with psycopg.connect(host=str(postgres.socket), user="tuner", dbname="postgres") as other:
        other.execute("SELECT pg_current_xact_id()")
        late = OpenWriter(store, "a")
        store.event("b", "trial", {}, START)
        _, position = read_on(store, position)
        late.roll_back()
        for number in (3, 4, 5):
            store.event("b", "trial", {}, START)
            found, position = read_on(store, position)
            assert found == [("b", number)]
            assert position.complete == 3
        other.rollback()
    found, position = read_on(store, position)
    assert (found, position) == ([], EventPosition(8))


def test_a_part_is_not_taken_for_the_whole(store: ServiceStore) -> None:
    position = start_reading(store)
    writers = [OpenWriter(store, "a"), OpenWriter(store, "c")]
    store.event("b", "trial", {}, START)
    _, position = read_on(store, position)
    for writer in writers:
        writer.commit()
    found = []
    for _ in range(3):
        events, position = store.new_events(position, limit=1)
        found += [(event.submission, event.number) for event in events]
    assert found == [("a", 2), ("c", 2)]
    assert position == EventPosition(6)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_random_interleavings_give_each_event_once_and_in_order(store: ServiceStore, seed: int) -> None:
    """Transactions begin, commit and are rolled back at random; readers of different limits start at random."""
    chance = random.Random(seed)
    open_writers: dict[str, OpenWriter] = {}
    committed = dict.fromkeys("abc", 1)
    readers: list[tuple[EventPosition, dict[str, int], int]] = []
    for step in range(120):
        id = chance.choice("abc")
        if id not in open_writers:
            open_writers[id] = OpenWriter(store, id)
        elif chance.random() < 0.75:
            open_writers.pop(id).commit()
            committed[id] += 1
        else:
            open_writers.pop(id).roll_back()
        if step % 30 == 0:
            position = start_reading(store)
            readers.append((position, {each: len(store.events_after(each, 0)) for each in "abc"}, step // 30 + 1))
        if chance.random() < 0.5:
            readers = [(read_events(store, position, seen, limit), seen, limit) for position, seen, limit in readers]
    for writer in open_writers.values():
        writer.roll_back()
    for position, seen, limit in readers:
        while (after := read_events(store, position, seen, limit)) != position:
            position = after
        assert seen == committed
        assert position.seen == frozenset()


def read_events(store: ServiceStore, position: EventPosition, seen: dict[str, int], limit: int) -> EventPosition:
    """Read once, check that each event is the next one of its submission, and return the new position."""
    events, position = store.new_events(position, limit)
    for event in events:
        if event.number > seen[event.submission]:  # else events_after had it
            assert event.number == seen[event.submission] + 1
            seen[event.submission] = event.number
    return position


def test_a_stalled_program_loses_its_locks(store: ServiceStore) -> None:
    with store._session(store._writer) as session:
        assert session.scalar(text("SHOW idle_in_transaction_session_timeout")) == "1min"


def test_a_lock_is_held_until_the_commit(store: ServiceStore) -> None:
    """The order of commits is that of numbers only if no other writer of the submission gets the row before."""
    lease = run(store, "d")
    writer = OpenWriter(store, "d")
    with store._session(store._writer) as session:
        session.execute(text("SET LOCAL lock_timeout = '50ms'"))
        with pytest.raises(Exception, match="lock timeout"):
            locked(session, "d")
        session.rollback()
    writer.commit()
    assert store.lost("d", DRIVER, lease, START, 3).state is SubmissionState.QUEUED
