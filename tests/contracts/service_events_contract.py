"""The contract of the service's store for events, figures, messages, and for threads that write at once."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pytest

from storage import StorageError
from storage.service.errors import NotYours, TooMany, WrongState
from storage.service.records import ENDED, Event, Figures, Lease, Message, Request, SubmissionState, Waiting
from storage.service.store import ServiceStore, open_service_store
from tests.contracts.service_contract import ServiceFixture, in_state, kinds, present
from tests.service_samples import DRIVER, START, at, lease_of, run, submission
from tests.some import some

S = SubmissionState
T = TypeVar("T")


def at_once(*operations: Callable[[], T]) -> list[T | StorageError]:
    """Run operations in threads that begin together; return the result of each, or what it refused."""
    barrier = threading.Barrier(len(operations))

    def begin(operation: Callable[[], T]) -> T | StorageError:
        barrier.wait(60)
        try:
            return operation()
        except StorageError as error:
            return error

    with ThreadPoolExecutor(len(operations)) as pool:
        return list(pool.map(begin, operations))


def numbers(events: Iterable[Event]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for event in events:
        found[event.submission].append(event.number)
    return dict(found)


class EventContract(ServiceFixture):
    def test_events_are_numbered_within_their_submission(self, store: ServiceStore) -> None:
        for id in ("a", "b"):
            store.submit(submission(id))
        assert [store.event(id, "trial", {"number": 4}, at(5)) for id in ("a", "b", "a")] == [2, 2, 3]
        assert store.events_after("a", 1) == [
            Event("a", 2, at(5), "trial", {"number": 4}),
            Event("a", 3, at(5), "trial", {"number": 4}),
        ]
        assert present(store, "a").events == 3

    def test_events_are_read_in_parts(self, store: ServiceStore) -> None:
        store.submit(submission())
        for number in range(4):
            store.event("s", "trial", {"number": number}, at(number))
        assert numbers(store.events_after("s", 0, limit=2)) == {"s": [1, 2]}
        assert numbers(store.events_after("s", 2, limit=2)) == {"s": [3, 4]}
        assert numbers(store.events_after("s", 4, limit=2)) == {"s": [5]}
        assert store.events_after("s", 5) == []
        assert store.events_after("s", 10**30) == []
        assert store.events_after("unknown", 0) == []

    def test_an_event_that_cannot_be_stored_takes_no_number(self, store: ServiceStore) -> None:
        store.submit(submission())
        with pytest.raises(StorageError, match=r"data\.score is nan"):
            store.event("s", "trial", {"score": float("nan")}, START)
        assert store.event("s", "note", {"text": "\x00\udcff"}, START) == 2

    def test_last_events_are_those_of_what_runs_or_waits_and_of_what_is_asked_for(self, store: ServiceStore) -> None:
        assert store.last_events([]) == {}
        store.submit(submission("waits"))
        run(store, "runs")
        store.event("runs", "trial", {}, START)
        in_state(store, S.DONE, "done")
        assert store.last_events([]) == {"waits": (1, False), "runs": (3, False)}
        assert store.last_events(["done", "unknown"])["done"] == (3, True)
        store.delete("done")
        assert set(store.last_events(["done"])) == {"waits", "runs"}


class RaceContract(ServiceFixture):
    """Threads that write at once, each with connections of its own."""

    def test_one_of_two_takes_the_lease(self, store: ServiceStore, url: str) -> None:
        other = open_service_store(url)
        for round in range(10):
            name = f"lease {round}"
            found = at_once(
                partial(store.take_lease, name, "a", 10, START),
                partial(other.take_lease, name, "b", 10, START),
            )
            assert sorted(found, key=lambda lease: lease is None) in (
                [Lease(name, "a", 1, at(10)), None],
                [Lease(name, "b", 1, at(10)), None],
            )
        other.close()

    def test_one_of_two_takes_an_expired_lease_over(self, store: ServiceStore) -> None:
        for round in range(10):
            name = f"lease {round}"
            store.take_lease(name, "old", 10, START)
            found = at_once(*(partial(store.take_lease, name, who, 10, at(10)) for who in "ab"))
            terms = [lease.term for lease in found if isinstance(lease, Lease)]
            assert terms == [2]

    def test_one_of_two_starts_wins_and_a_stale_term_never_does(self, store: ServiceStore) -> None:
        old = some(store.take_lease("scheduler", "old", 10, START))
        lease = some(store.take_lease("scheduler", "a", 3600, at(10)))
        for round in range(10):
            id = f"s{round}"
            store.submit(submission(id))
            granted = [("stale",), ("d0",), ("d1",), ("stale",)]
            leases = [old, lease, lease, old]
            found = at_once(
                *(partial(store.start, id, devices, each, at(9)) for devices, each in zip(granted, leases, strict=True))
            )
            assert sorted(found, key=bool) == [False, False, False, True]
            assert present(store, id).granted == granted[found.index(True)]
            assert present(store, id).granted != ("stale",)
            assert kinds(store, id) == ["queued", "started"]

    def test_starts_while_the_lease_is_taken_over_have_one_winner(self, store: ServiceStore) -> None:
        for round in range(10):
            id, name = f"s{round}", f"lease {round}"
            store.submit(submission(id))
            old = some(store.take_lease(name, "a", 10, START))

            def take_over(name: str, id: str) -> bool:
                new = store.take_lease(name, "b", 10, at(10))
                return new is not None and store.start(id, ["new"], new, at(10))

            found = at_once(partial(store.start, id, ["old"], old, at(9)), partial(take_over, name, id))
            assert sorted(found, key=bool) == [False, True]

    def test_as_many_as_may_wait_are_accepted(self, store: ServiceStore) -> None:
        for index in range(10):
            store.submit(submission(f"old-{index}"))
        operations = [partial(store.submit, submission(f"new-{index}"), 20) for index in range(40)]
        found = at_once(*operations)
        assert sum(isinstance(each, tuple) for each in found) == 10
        assert {str(each) for each in found if not isinstance(each, tuple)} == {
            "20 studies of ada wait already; wait until some have ended, or cancel some"
        }
        assert store.figures().states[S.QUEUED] == 20
        assert store.submit(submission("old-0"), 20)[1] is False  # a repeated request
        assert store.submit(submission("bobs", owner="bob"), 20)[1] is True

    def test_as_many_as_may_wait_are_resumed(self, store: ServiceStore) -> None:
        for index in range(20):
            store.submit(submission(f"s{index}"))
            store.request(f"s{index}", Request.CANCEL, at(1))
        found = at_once(*(partial(store.resume, f"s{index}", at(2), 5) for index in range(20)))
        assert sum(isinstance(each, TooMany) for each in found) == 15
        assert store.figures().states[S.QUEUED] == 5

    def test_submitting_and_resuming_do_not_wait_for_each_other(self, store: ServiceStore) -> None:
        for index in range(20):
            store.submit(submission(f"s{index}"))
            store.request(f"s{index}", Request.CANCEL, at(1))
        resumed = [partial(store.resume, f"s{index}", at(2), 100) for index in range(20)]
        submitted = [partial(store.submit, submission(f"s{index}"), 100) for index in range(20)]
        for each in at_once(*resumed, *submitted):
            assert not isinstance(each, StorageError)

    def test_one_of_two_equal_submissions_is_new(self, store: ServiceStore) -> None:
        for round in range(10):
            new = submission(f"s{round}")
            found = at_once(partial(store.submit, new), partial(store.submit, new))
            created = [each[1] for each in found if isinstance(each, tuple)]
            assert sorted(created) == [False, True]
            assert kinds(store, new.id) == ["queued"]

    def test_events_of_four_threads_are_numbered_without_gaps(self, store: ServiceStore, url: str) -> None:
        store.submit(submission())
        stores = [open_service_store(url) for _ in range(4)]

        def write(own: ServiceStore, name: str) -> list[int]:
            return [own.event("s", "trial", {"of": name, "number": number}, START) for number in range(50)]

        found = at_once(*(partial(write, own, who) for own, who in zip(stores, "abcd", strict=True)))
        returned = [number for each in found if isinstance(each, list) for number in each]
        assert sorted(returned) == list(range(2, 202))
        stored = store.events_after("s", 1)
        assert [event.number for event in stored] == list(range(2, 202))
        for who in "abcd":
            assert [e.data["number"] for e in stored if e.data["of"] == who] == list(range(50))
        for own in stores:
            own.close()

    def test_a_reader_gets_each_event_of_four_writers_once_and_in_order(self, store: ServiceStore, url: str) -> None:
        ids = ["a", "b", "c"]
        for id in ids:
            store.submit(submission(id))
        stores = [open_service_store(url) for _ in range(4)]

        def write(own: ServiceStore, first: int) -> None:
            for number in range(60):
                own.event(ids[(first + number) % 3], "trial", {}, START)

        events: list[Event] = []
        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write, own, first) for first, own in enumerate(stores)]
            while len(events) < 243 and not any(writer.done() and writer.exception() for writer in writers):
                for id, (last, _) in store.last_events([]).items():
                    read = len(numbers(events).get(id, ()))
                    new = store.events_after(id, read, limit=7)
                    assert len(new) >= min(last - read, 7)  # a number that is read has all smaller ones before it
                    events += new
            for writer in writers:
                writer.result()
        assert numbers(events) == {id: list(range(1, 82)) for id in ids}
        for own in stores:
            own.close()

    def test_a_stop_beside_a_yield_is_never_forgotten(self, store: ServiceStore) -> None:
        for round in range(10):
            id = f"s{round}"
            run(store, id)
            found = at_once(
                partial(store.end, id, DRIVER, S.QUEUED, None, None, at(5)),
                partial(store.request, id, Request.STOP, at(5)),
            )
            assert [error for error in found if isinstance(error, StorageError)] == []
            after = present(store, id)
            assert (after.state, after.request) in [(S.QUEUED, Request.STOP), (S.CANCELLED, None)]

    def test_a_request_beside_an_end_is_kept_or_refused(self, store: ServiceStore) -> None:
        for round in range(10):
            id = f"s{round}"
            run(store, id)
            _, asked = at_once(
                partial(store.end, id, DRIVER, S.DONE, None, None, at(5)),
                partial(store.request, id, Request.CANCEL, at(5)),
            )
            assert (present(store, id).state, present(store, id).request) == (S.DONE, None)
            expected = ["queued", "started", "done"]
            if not isinstance(asked, WrongState):
                expected.insert(2, "requested")
            assert kinds(store, id) == expected

    def test_a_driver_that_is_taken_for_lost_notices(self, store: ServiceStore) -> None:
        for round in range(10):
            id = f"s{round}"
            lease = run(store, id)
            ended, lost = at_once(
                partial(store.end, id, DRIVER, S.DONE, None, None, at(5)),
                partial(store.lost, id, DRIVER, lease, at(5), 3),
            )
            assert not isinstance(lost, StorageError)
            after = present(store, id)
            assert after.state is (S.QUEUED if isinstance(ended, NotYours) else S.DONE)
            assert after.gpu_seconds == 10.0
            uses = [use for use in store.uses(START - timedelta(days=1)) if use.submission == id]
            assert [use.gpu_seconds for use in uses] == [10.0]
        assert lease_of(store).term == 1


class FigureContract(ServiceFixture):
    """The queue in numbers."""

    def test_an_empty_queue(self, store: ServiceStore) -> None:
        assert store.figures() == Figures(dict.fromkeys(SubmissionState, 0), {}, ())

    def test_the_queue_in_numbers(self, store: ServiceStore) -> None:
        for id, kind, second in (("a", "h200", 50), ("b", "h200", 40), ("c", "cpu", 60)):
            store.submit(submission(id, kind=kind, created_at=at(second)))
        run(store, "running", ("d0", "d1"))
        run(store, "again", ("d2",))
        store.end("again", DRIVER, S.QUEUED, None, None, at(30))
        in_state(store, S.DONE, "done")
        found = store.figures()
        assert {state: count for state, count in found.states.items() if count} == {
            S.QUEUED: 4,
            S.RUNNING: 1,
            S.DONE: 1,
        }
        assert set(found.states) == set(SubmissionState)
        assert found.waiting == {"h200": Waiting(3, at(30)), "cpu": Waiting(1, at(60))}
        assert found.granted == ("d0", "d1")


def start(store: ServiceStore, id: str, webhook: str | None) -> None:
    store.submit(submission(id, webhook=webhook))
    assert store.start(id, ("d0", "d1"), lease_of(store), at(0))
    store.set_driver(id, DRIVER, at(0))


class MessageContract(ServiceFixture):
    """Messages that are still to be sent."""

    @pytest.mark.parametrize("state", sorted(ENDED))
    def test_each_end_has_a_message(self, store: ServiceStore, state: SubmissionState) -> None:
        start(store, "s", "team")
        assert store.due_messages(at(59)) == []
        store.end("s", DRIVER, state, "why", "tuner", at(60))
        facts = {"id": "s", "owner": "ada", "kind": "h200", "gpu_seconds": 120.0}
        facts |= {"state": state.value, "reason": "why", "culprit": "tuner"}
        times = {"created_at": START.isoformat(), "ended_at": at(60).isoformat()}
        assert store.due_messages(at(60)) == [Message(1, "team", "end_1_3", {**facts, **times}, at(60))]

    def test_one_that_is_queued_again_has_none_until_it_ends(self, store: ServiceStore) -> None:
        start(store, "s", "team")
        store.end("s", DRIVER, S.QUEUED, None, None, at(30))
        assert store.due_messages(at(100)) == []
        store.request("s", Request.CANCEL, at(40))
        store.resume("s", at(50))
        store.request("s", Request.CANCEL, at(60))
        assert [message.data["state"] for message in store.due_messages(at(100))] == ["CANCELLED", "CANCELLED"]
        assert len({message.key for message in store.due_messages(at(100))}) == 2

    def test_a_submission_without_a_webhook_has_none(self, store: ServiceStore) -> None:
        start(store, "s", None)
        store.end("s", DRIVER, S.DONE, None, None, at(60))
        assert store.due_messages(at(100)) == []

    def test_a_message_outlives_its_submission(self, store: ServiceStore) -> None:
        start(store, "s", "team")
        store.end("s", DRIVER, S.DONE, None, None, at(60))
        store.delete("s")
        assert [message.data["id"] for message in store.due_messages(at(60))] == ["s"]

    def test_postponed_and_dropped_messages(self, store: ServiceStore) -> None:
        for id, end in (("a", 60), ("b", 70), ("c", 80)):
            start(store, id, "team")
            store.end(id, DRIVER, S.DONE, None, None, at(end))
        first, second, third = store.due_messages(at(80))
        store.drop_message(second.number)
        store.postpone_message(first.number, 1, at(90))
        assert [message.data["id"] for message in store.due_messages(at(89))] == ["c"]
        late = store.due_messages(at(90))
        assert [(message.data["id"], message.attempts) for message in late] == [("c", 0), ("a", 1)]
        assert [message.number for message in store.due_messages(at(90), limit=1)] == [third.number]
        store.drop_message(4711)  # another process has sent it meanwhile
        store.postpone_message(4711, 1, at(1))
        assert len(store.due_messages(at(90))) == 2
