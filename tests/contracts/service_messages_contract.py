"""The contract of messages to webhooks on every supported database; a test module supplies the fixture `url`."""

import pytest

from storage.service.records import ENDED, Request, SubmissionState
from storage.service.store import ServiceStore
from storage.service.watching.records import Message
from tests.contracts.service_contract import ServiceFixture
from tests.service_samples import DRIVER, START, at, lease_of, submission

S = SubmissionState


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
